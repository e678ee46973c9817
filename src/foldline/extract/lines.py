"""Breakpoints of a piecewise-linear function on a line from values, in as few rows as we know how.

Between two known pieces L and R the crossing t* = (L and R agree) is where a single fold must be. The search asks
just left and just right of t*: with L on the left and R on the right the fold is confirmed; an answer on neither is
a new piece, so the row was not wasted; an answer on the wrong piece shrinks the gap. Checking one side only is not
enough: two folds of opposite sign between L and R put t* outside both of them, where the value still fits a piece.

Cost: about 5 rows per fold with one output (2 for a new piece, 2 to confirm, the rest is luck), and 2.6 with several
outputs, whose pieces must all cross at the same t*. All open gaps are asked in one batch per round. gradient_lines.py
is the same search where an answer carries its own slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BudgetExhausted
from foldline.extract.line_pieces import Array, FoldLine, Gap, Piece, middle

AskValues = Callable[[Tensor], Tensor]                       # t (n,) -> y (n, k)
Noise = Callable[[float], float]

TRIES = 64                  # rows one gap may take before it is left open: bounded work on functions that are not ours
FINE = 1e-5                 # of a gap's width: how close to t* the two sides are asked
SLOPE = 1e-4                # of a gap's width: the step that gives a new piece its slope


class ValueSearch:
    """The state of one search from values; `run` does the rounds."""

    def __init__(self, ask: AskValues, noise: Noise, *, scale: float | None, limit: int | None) -> None:
        self.ask_rows, self.noise, self.scale, self.limit = ask, noise, scale, limit
        self.gaps: list[Gap] = []
        self.folds: list[tuple[float, Piece, Piece, float]] = []
        self.stuck: list[Gap] = []
        self.pieces: list[Piece] = []
        self.asked: list[tuple[float, Array]] = []
        self.hidden: list[tuple[float, float]] = []          # stretches with a fold that the search did not see

    def ask(self, ts: list[float]) -> list[Array]:
        ys = self.ask_rows(torch.tensor(ts, dtype=torch.float64)).double().numpy()      # (n, k)
        self.asked += [(t, y) for t, y in zip(ts, ys, strict=True)]
        return list(ys)

    def piece(self, t1: float, y1: Array, t2: float, y2: Array) -> Piece:
        if t1 > t2:
            t1, y1, t2, y2 = t2, y2, t1, y1
        p = Piece(t1, y1, t2, y2, self.noise(t1), self.noise(t2))
        self.pieces.append(p)
        return p

    def several(self) -> bool:
        """Whether the slopes seen so far differ in more than one direction of output space."""
        if len(self.pieces) < 3 or len(self.pieces[0].y1) < 2:
            return False
        s = np.array([p.slope for p in self.pieces[:64]])
        sv = np.linalg.svd(s - s[0], compute_uv=False)
        return bool(sv[1] > 1e-6 * sv[0])

    def crossing(self, g: Gap) -> tuple[float, float, float, float]:
        """(t*, its error, how far apart the pieces still are there, what noise explains of that)"""
        L, R = g.left, g.right
        mid = 0.5 * (L.t2 + R.t1)
        ds, dc = R.slope - L.slope, R.at(mid) - L.at(mid)
        size = float(ds @ ds)
        if math.sqrt(size) <= L.slope_err + R.slope_err:             # parallel, as far as anyone can tell
            return math.nan, math.inf, float(abs(dc).max()), L.err(mid) + R.err(mid)
        t = mid - float(ds @ dc) / size
        if not math.isfinite(t):
            return math.nan, math.inf, math.inf, 0.0
        err = L.err(t) + R.err(t)
        return t, err / math.sqrt(size), float(abs(R.at(t) - L.at(t)).max()), err

    def steps(self, g: Gap, t: float) -> tuple[float, float]:
        """(offset from t*, step for a slope) at t: a share of the gap, but never below what the noise blurs."""
        width = g.right.t1 - g.left.t2
        wide = g.width if self.scale is None else min(g.width, self.scale + abs(t))
        jump = float(abs(g.right.slope - g.left.slope).max())
        blur = self.noise(t) / jump if jump > 0 else 0.0
        return FINE * wide, min(max(SLOPE * wide, 100 * blur), width / 3)

    def settle(self, g: Gap) -> bool:
        """Close the gap without asking, where what is known suffices."""
        L, R = g.left, g.right
        a, b = L.t2, R.t1
        tol_a, tol_b = L.err(a) + R.err(a), L.err(b) + R.err(b)
        if abs(R.at(a) - L.at(a)).max() <= tol_a and abs(R.at(b) - L.at(b)).max() <= tol_b:
            L.t2, L.y2, L.e2 = R.t2, R.y2, R.e2              # one piece seen twice
            R.t1, R.y1, R.e1 = L.t1, L.y1, L.e1
            return True
        t, dt, apart, explained = self.crossing(g)
        if not (a - dt <= t <= b + dt) or apart > explained:
            return False
        fine = max(self.steps(g, t)[0], 8 * dt)
        close = t - a <= 2 * fine and b - t <= 2 * fine
        sharp = explained <= 1e-4 * float(abs(R.slope - L.slope).max()) * max(b - a, 1e-300)
        if close or (sharp and self.several()):
            self.folds.append((min(max(t, a), b), L, R, dt))
            return True
        return False

    def next_point(self, g: Gap) -> float:
        a, b = g.left.t2, g.right.t1
        if g.pending is not None:
            t = g.pending[0]
            step = self.steps(g, t)[1]
            return t + step if b - t >= t - a else t - step
        t, dt, apart, explained = self.crossing(g)
        fine = max(self.steps(g, t)[0], 8 * dt) if math.isfinite(t) else math.inf
        if a - dt <= t <= b + dt and (apart <= explained or len(g.left.y1) == 1) and fine < 0.25 * (b - a):
            if t - a > 2 * fine and (g.tries % 2 == 0 or b - t <= 2 * fine):
                return t - fine
            if b - t > 2 * fine:
                return t + fine
        m = middle(a, b, self.scale)
        # A point that fits both pieces tells nothing: move off the middle, a little more each time.
        return m if g.wander == 0 else a + (b - a) * ((0.5 + 0.381966 * g.wander) % 1.0)

    def receive(self, g: Gap, t: float, y: Array) -> list[Gap]:
        g.tries += 1
        L, R, e = g.left, g.right, self.noise(t)
        on_left = bool(abs(y - L.at(t)).max() <= L.err(t) + e)
        on_right = bool(abs(y - R.at(t)).max() <= R.err(t) + e)
        if on_left != on_right:
            (L if on_left else R).extend(t, y, e)
            if g.pending is not None and not L.t2 < g.pending[0] < R.t1:
                g.pending = None
            return [g]
        if on_left:
            g.wander += 1
            return [g]
        if g.pending is None:
            g.pending = (t, y)
            return [g]
        if t == g.pending[0]:                                        # steps have reached the spacing of floats
            g.tries = TRIES
            return [g]
        new = self.piece(*g.pending, t, y)
        return [Gap(L, new, new.t1 - L.t2), Gap(new, R, R.t1 - new.t2)]

    def run(self) -> None:
        while self.gaps:
            open_gaps: list[Gap] = []
            for g in self.gaps:
                if g.right.t1 <= g.left.t2 or self.settle(g):
                    continue
                width = g.right.t1 - g.left.t2
                tiny = 16 * np.finfo(float).eps * max(abs(g.left.t2), abs(g.right.t1))
                (self.stuck if g.tries >= TRIES or width <= tiny else open_gaps).append(g)
            self.gaps = open_gaps
            if not open_gaps:
                return
            if self.limit is not None and len(self.asked) + len(open_gaps) > self.limit:
                self.stuck += open_gaps
                return
            points = [self.next_point(g) for g in open_gaps]
            try:
                answers = self.ask(points)
            except BudgetExhausted:
                self.stuck += open_gaps
                raise
            self.gaps = [n for g, t, y in zip(open_gaps, points, answers, strict=True) for n in self.receive(g, t, y)]

    def unstraddle(self) -> None:
        """Take back pieces that are no pieces: two answers on either side of one fold.

        Such a piece reaches exactly from fold to fold, since both were put at its own ends. One row in its middle
        tells; the fold is then where the true neighbours cross.
        """
        folds = sorted(self.folds, key=lambda f: f[0])
        doubted = [(one, two) for one, two in pairwise(folds) if one[2] is two[1] and
                   one[2].t1 - one[0] + two[0] - one[2].t2 <= 1e-3 * (two[0] - one[0])]
        if not doubted or (self.limit is not None and len(self.asked) + len(doubted) > self.limit):
            return
        middles = [0.5 * (one[0] + two[0]) for one, two in doubted]
        gone: set[int] = set()
        for (one, two), t, y in zip(doubted, middles, self.ask(middles), strict=True):
            p = one[2]
            if abs(y - p.at(t)).max() <= p.err(t) + self.noise(t) or gone & {id(one), id(two)}:
                continue
            at, dt, apart, explained = self.crossing(Gap(one[1], two[2], 0.0))
            if one[0] - dt <= at <= two[0] + dt and apart <= explained:
                gone |= {id(one), id(two)}
                self.folds.append((at, one[1], two[2], dt))
            else:
                self.hidden.append((one[0], two[0]))
        self.folds = [f for f in self.folds if id(f) not in gone]

    def sharpen(self) -> None:
        """One more row for each piece that is known from a short step: at its far end, for slope and as a check."""
        folds = sorted(self.folds, key=lambda f: f[0])
        wanted: list[tuple[Piece, float]] = []
        for (t1, _, p, _), (t2, _, _, _) in pairwise(folds):
            width = t2 - t1
            if width > 0 and p.t2 - p.t1 < 0.3 * width:
                wanted.append((p, t2 - 0.05 * width if t2 - p.t2 > p.t1 - t1 else t1 + 0.05 * width))
        if not wanted or (self.limit is not None and len(self.asked) + len(wanted) > self.limit):
            return
        for (p, t), y in zip(wanted, self.ask([t for _, t in wanted]), strict=True):
            if abs(y - p.at(t)).max() <= p.err(t) + self.noise(t):
                p.extend(t, y, self.noise(t))
            else:
                self.hidden.append((min(p.t2, t), max(p.t1, t)))


def folds_from_values(ask: AskValues, ends: tuple[float, float], *, noise: Noise, scale: float | None = None,
                      limit: int | None = None) -> FoldLine:
    """Every fold of t -> y (n, k) between the ends.

    noise(t) is the most that an answer at t may be off. scale: the line is unbounded in spirit and middles are taken
    in arctan(t / scale). limit: rows that may be asked. A bump whose two sides are the same straight line leaves no
    trace at the points asked; callers look for it in the residual.
    """
    lo, hi = ends
    search = ValueSearch(ask, noise, scale=scale, limit=limit)
    near = SLOPE * (hi - lo)
    first = [lo, lo + near, hi - near, hi] if scale is None else [lo, lo / 2, hi / 2, hi]
    y = search.ask(first)
    L, R = search.piece(first[0], y[0], first[1], y[1]), search.piece(first[2], y[2], first[3], y[3])
    search.gaps = [Gap(L, R, hi - lo)]
    search.run()
    search.unstraddle()
    search.sharpen()
    return assemble(search, ends)


def assemble(search: ValueSearch, ends: tuple[float, float]) -> FoldLine:
    folds = sorted(search.folds, key=lambda f: f[0])
    # Supports grew after a fold was recorded: cross the final pieces again.
    t, jump, error = [], [], []
    for t0, L, R, dt in folds:
        again, dt2, _, _ = search.crossing(Gap(L, R, 0.0))
        better = math.isfinite(again) and abs(again - t0) <= 16 * (dt + dt2)
        t.append(again if better else t0)
        error.append(dt2 if better else dt)
        jump.append(R.slope - L.slope)
    k = len(search.asked[0][1])
    order = [search.pieces[0]] if not folds else [folds[0][1], *(f[2] for f in folds)]
    base = [0.5 * (p.t1 + p.t2) for p in order]
    values = [0.5 * (p.y1 + p.y2) for p in order]
    stuck = (*((g.left.t2, g.right.t1) for g in search.stuck), *search.hidden)

    def table(rows: list[Array]) -> Tensor:
        return torch.tensor(np.array(rows, dtype=np.float64).reshape(len(rows), k))

    return FoldLine(
        t=torch.tensor(t, dtype=torch.float64), jump=table(jump), error=torch.tensor(error, dtype=torch.float64),
        base=torch.tensor(base, dtype=torch.float64), value=table(values), slope=table([p.slope for p in order]),
        support=torch.tensor([[p.t1, p.t2] for p in order], dtype=torch.float64),
        support_value=torch.tensor(np.array([[p.y1, p.y2] for p in order]).reshape(len(order), 2, k)),
        support_error=torch.tensor([[p.e1, p.e2] for p in order], dtype=torch.float64), ends=ends, open=stuck,
        rows=len(search.asked),
        samples=(torch.tensor([a for a, _ in search.asked], dtype=torch.float64),
                 table([y for _, y in search.asked])))
