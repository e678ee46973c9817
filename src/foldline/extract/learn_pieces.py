"""Folds of a piecewise-linear function on many lines at once, at every scale down to a resolution.

Three points on one piece are collinear. An interval that no collinear triple covers holds a fold: it is halved, or,
between two known pieces, cut at the crossing those pieces predict and confirmed by one value on either side. So an
isolated fold costs 2 values, two folds at a distance e cost about log2(grid / e) more, and what is still tangled at
the resolution is returned as one fold with a width. A bump that lies between two grid points is not seen here: that
is the grid's price (paper 001, Example 1.2), and the caller's probes find it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

Values = Callable[[Index, Array], tuple[Array, Array]]
"""(line (n,), t (n,)) -> (f (n,), eta (n,)): values on the lines, and how far each may be from the exact one"""

STEEPEST_GRADING = 64.0     # neighbouring intervals differ by no more, or a collinear triple says nothing
NEAR = 1e-3                 # of the interval: how close to a predicted fold it is checked
CROWD = 40                  # points a fold: more, and it is not folds that bend the line
DENSE = 4096                # points on a line before bends that shrink with the step are called a curve
MAX_ROUNDS = 90


@dataclass(frozen=True, eq=False)
class Pieces:
    """The linear pieces of every line in order; a fold lies between two consecutive pieces of one line."""

    line: Index             # (n,)
    start: Array            # (n,) where the piece begins: the fold, or the end of the search
    stop: Array             # (n,)
    slope: Array            # (n,)
    slope_error: Array      # (n,)
    value: Array            # (n,) at `middle`
    middle: Array           # (n,) a place that was asked, far from the folds
    radius: Array           # (n,) from there to the nearest fold on the line; infinite on a line without folds
    noise: float = 1.0      # how many times worse than was said the answers turned out to be


def search_lines(values: Values, grid: Array, *, resolution: float, far: float, max_points: int = 200_000) -> Pieces:
    """grid (lines, points): where every line is asked first, ascending. resolution: width below which folds merge.
    far: how far from its only fold an outer piece is looked at.
    """
    lines, points = grid.shape
    line = np.repeat(np.arange(lines), points)
    t = grid.reshape(-1).astype(np.float64)
    f, eta = values(line, t)
    fold = np.zeros(len(t), dtype=bool)
    noise, allowed = 1.0, 0.0
    for _ in range(MAX_ROUNDS):
        order = np.lexsort((t, line))
        line, t, f, eta, fold = line[order], t[order], f[order], eta[order], fold[order]
        linear, bent, off = covered(line, t, f, eta, fold)
        if len(t) > max(CROWD * (int(fold.sum()) + 16 * lines) + 2 * grid.size, allowed) and bent.any():
            # Bent everywhere, down to the smallest steps: that is not folds, the answers are worse than was thought.
            # Hundreds of folds look like a curve until the grid is finer than the gaps between them.
            worse, of_noise = how_much_worse(t, off, eta, bent)
            allowed = 1.5 * len(t)                                  # and see whether that was it
            if of_noise or len(t) > min(DENSE, max_points // 2):
                noise *= worse if of_noise else 1.0
                eta = worse * np.maximum(eta, 1e-300)
                linear, bent, off = covered(line, t, f, eta, fold)
        left = np.flatnonzero(~linear & (line[1:] == line[:-1]) & (np.diff(t) > resolution))     # interval i: (i, i+1)
        if len(left) == 0 or len(t) > max_points:
            break
        crossing = predicted_crossing(left, line, t, f, linear)                                 # NaN where none
        sure = np.isfinite(crossing)
        i, c = left[sure], crossing[sure]
        halves = left[~sure]
        slope_p = (f[i] - f[i - 1]) / (t[i] - t[i - 1])
        slope_r = (f[i + 2] - f[i + 1]) / (t[i + 2] - t[i + 1])
        # Checks close to the crossing: two folds of opposite sign also let their outer pieces cross somewhere.
        near = np.maximum(NEAR * (t[i + 1] - t[i]), 16 * worst3(eta, i) / np.abs(slope_p - slope_r))
        new_t = np.concatenate([c - np.minimum(near, 0.5 * (c - t[i])), c + np.minimum(near, 0.5 * (t[i + 1] - c)),
                                0.5 * (t[halves] + t[halves + 1])])
        new_line = np.concatenate([line[i], line[i], line[halves]])
        new_f, new_eta = values(new_line, new_t)
        n = len(i)
        off_p = np.abs(new_f[:n] - f[i] - slope_p * (new_t[:n] - t[i]))
        off_r = np.abs(new_f[n:2 * n] - f[i + 1] - slope_r * (new_t[n:2 * n] - t[i + 1]))
        # Extrapolating from a piece magnifies its two errors by the ratio of the lengths.
        tol_p = 4 * (new_eta[:n] + worst3(eta, i) * (1 + 2 * (new_t[:n] - t[i]) / (t[i] - t[i - 1])))
        tol_r = 4 * (new_eta[n:2 * n]
                     + worst3(eta, i + 1) * (1 + 2 * (t[i + 1] - new_t[n:2 * n]) / (t[i + 2] - t[i + 1])))
        hit = (off_p <= tol_p) & (off_r <= tol_r)
        line = np.concatenate([line, new_line, line[i][hit]])
        t = np.concatenate([t, new_t, c[hit]])
        f = np.concatenate([f, new_f, (f[i] + slope_p * (c - t[i]))[hit]])
        eta = np.concatenate([eta, new_eta, 0.25 * tol_p[hit]])
        fold = np.concatenate([fold, np.zeros(len(new_t), dtype=bool), np.ones(int(hit.sum()), dtype=bool)])
    order = np.lexsort((t, line))
    line, t, f, eta, fold = line[order], t[order], f[order], eta[order], fold[order]
    return replace(pieces_of(line, t, f, eta, fold, far), noise=noise)


def how_much_worse(t: Array, off: Array, eta: Array, bent: npt.NDArray[np.bool_]) -> tuple[float, bool]:
    """(factor on eta, is it noise?) from the bends at the smallest steps, where folds bend least.

    Bends of noise do not shrink with the step; those of folds shrink like it, those of curves like its square.
    """
    i = np.flatnonzero(bent)
    h = t[i + 1] - t[i - 1]
    fine = h <= np.quantile(h, 0.25)
    factor = max(8.0, float(np.median(off[i[fine]] / np.maximum(eta[i[fine]], 1e-300))))
    rest = ~fine
    return factor, bool(rest.any() and np.median(off[i[fine]]) > 0.5 * np.median(off[i[rest]]))


def worst3(eta: Array, i: Index) -> Array:
    out: Array = np.maximum(np.maximum(eta[np.maximum(i - 1, 0)], eta[i]), eta[np.minimum(i + 1, len(eta) - 1)])
    return out


def covered(line: Index, t: Array, f: Array, eta: Array, fold: npt.NDArray[np.bool_]
            ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Array]:
    """(linear (n-1,), bent (n,), off (n,)): intervals that lie in a piece, points where three are not collinear, and
    by how much.
    """
    n = len(t)
    bent, straight, bend = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool), np.zeros(n)
    inner = np.flatnonzero(line[2:] == line[:-2]) + 1
    a, b = t[inner] - t[inner - 1], t[inner + 1] - t[inner]
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(f[inner] - (b * f[inner - 1] + a * f[inner + 1]) / (a + b))
    bend[inner] = off
    tol = 4 * worst3(eta, inner)
    graded = (a <= STEEPEST_GRADING * b) & (b <= STEEPEST_GRADING * a)
    bent[inner] = (off > tol) & ~fold[inner]
    straight[inner] = (off <= tol) & graded & ~fold[inner]
    linear = straight[:-1] | straight[1:] | fold[:-1] | fold[1:]
    return linear, bent, bend


def predicted_crossing(left: Index, line: Index, t: Array, f: Array, linear: npt.NDArray[np.bool_]) -> Array:
    """Where the pieces on both sides of interval i meet, if both are known and meet inside it; else NaN."""
    n = len(t)
    out = np.full(len(left), np.nan)
    ok = (left >= 1) & (left + 2 < n)
    i = left[ok]
    flanked = (line[i - 1] == line[i]) & (line[i + 2] == line[i + 1]) & linear[i - 1] & linear[i + 1]
    i = i[flanked]
    p = (f[i] - f[i - 1]) / (t[i] - t[i - 1])
    r = (f[i + 2] - f[i + 1]) / (t[i + 2] - t[i + 1])
    with np.errstate(invalid="ignore", divide="ignore"):
        c = (f[i + 1] - r * t[i + 1] - f[i] + p * t[i]) / (p - r)
        # Crossings at the very ends of the interval leave no room for a check: halve instead.
        margin = 1e-6 * (t[i + 1] - t[i])
        c = np.where((c > t[i] + margin) & (c < t[i + 1] - margin), c, np.nan)
    where = np.flatnonzero(ok)[flanked]
    out[where] = c
    return out


def pieces_of(line: Index, t: Array, f: Array, eta: Array, fold: npt.NDArray[np.bool_], far: float) -> Pieces:
    """Cut every line at its folds and at its tangles."""
    linear, bent, _ = covered(line, t, f, eta, fold)
    same = line[1:] == line[:-1]
    # A fold that hit a grid point: both sides are pieces, the triple at it is not collinear.
    at_point = bent.copy()
    at_point[0] = at_point[-1] = False
    at_point[1:-1] &= linear[:-1] & linear[1:] & ~fold[:-2] & ~fold[2:]
    cut = fold | at_point
    out: list[tuple[float, ...]] = []
    n, i = len(t), 0
    while i < n - 1:
        if not (same[i] and linear[i]):
            i += 1
            continue
        j = i + 1                                                   # piece from point i to point j
        while j < n - 1 and same[j] and linear[j] and not cut[j]:
            j += 1
        length = t[j] - t[i]
        slope = (f[j] - f[i]) / length
        first, last = i == 0 or not same[i - 1], j == n - 1 or not same[j]
        asked = np.flatnonzero(~cut[i:j + 1]) + i
        if len(asked) == 0:                                         # a piece whose inside no one has seen
            i = j
            continue
        m, room = vantage(t[asked], -np.inf if first else t[i], np.inf if last else t[j], far)
        if not room > 0:
            i = j
            continue
        out.append((line[i], t[i], t[j], slope, (eta[i] + eta[j]) / length, f[asked[m]], t[asked[m]], room))
        i = j
    table = np.array(out, dtype=np.float64).reshape(-1, 8)
    start, stop, slope, error, value, middle, radius = (table[:, c] for c in range(1, 8))
    return Pieces(table[:, 0].astype(np.int64), start, stop, slope, error, value, middle, radius)


def vantage(t: Array, low: float, high: float, far: float) -> tuple[int, float]:
    """Which of t is best to differentiate at: far from the folds at low and high, but no farther than needed."""
    room = np.minimum(t - low, high - t)
    if np.isinf(low) and np.isinf(high):
        return int(np.abs(t).argmin()), float("inf")
    if np.isinf(low) or np.isinf(high):                             # an outer piece: at about `far` from its fold
        m = int(np.abs(np.log(np.maximum(room, 1e-300) / far)).argmin())
        return m, float(room[m])
    enough = np.minimum(room, far) >= 0.7 * min(far, float(room.max()))
    m = int(np.where(enough, np.abs(t), np.inf).argmin())           # nearer to the origin, answers are more exact
    return m, float(room[m])


def line_grid(d: int, *, points: int, reach: float = 300.0, centre: bool = False) -> Array:
    """(n,) ascending places on a Gaussian line. A unit's fold is at t = (c - n.x0) / (n.v), Cauchy-like with scale
    sqrt(d): equal steps of angle meet equally many. centre: also a geometric ladder around t = 0, down to 1e-4.
    """
    s = float(np.sqrt(d))
    last = np.arctan(reach)
    t = s * np.tan(np.linspace(-last, last, points))
    if centre:
        ladder = s * 2.0 ** np.arange(-13, 1)
        t = np.union1d(t, np.concatenate([-ladder, [0.0], ladder]))
    return t
