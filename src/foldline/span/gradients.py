"""Span of the first layer from input gradients, or from values through differences.

f(x) = s(A x) has gradients in the row space of A, and at generic points k of them span it (Algorithm 1 of Jayaram,
Woodruff and Zhang). Cost: about rank + 2 gradients when the arithmetic is exact, rank + 12 when the spectrum falls
into noise (float32, trained victims); from values each gradient costs 1.026 d rows and all outputs share it.

method="gaussian": the paper's points, fixed before the first query (`points` lists them; `answers` reads them back).
method="adaptive": points at mixed scales, near points that spoke where most are silent. It stops when the rank has
been stable for `patience` probes that could have changed it; half of them move a known point far into the null
space, where a missing direction shows as a changed answer. If the rank ever grew again after a pause, three times
that pause is waited for. The rank is where the singular values fall to the noise (rank.py).

Differs from the paper: rows scaled to unit length, so that saturated or steep points weigh the same; a gap test
instead of 1e-5 of the largest singular value; any number of outputs; adaptive points. The paper's own "adaptive"
curve (GradientsRandomAda) projects points away from what is known; ours does so to confirm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foldline.errors import BadInput, BudgetExhausted
from foldline.oracles.protocols import GradientOracle, ValueOracle
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, Result, Status, fraction_upper_bound, silent
from foldline.span.differences import Differences, last_digit
from foldline.span.points import PointStream, gaussian_points
from foldline.span.rank import CLIFF, SHORT_TAIL, TAIL, RankDecision, decide_rank, singular

PATIENCE = 2
NULL_MOVES = 16         # for values, where a move costs two rows
SILENCE = 64            # zero gradients in a row before the search for a live point ends
LONG_TAIL = 24          # probes below the floor without a gap: the spectrum sinks into the noise
REPEAT_AT = 128         # probes without a floor in sight: ask one point again, to measure noise
PLAIN = 1e-3            # a unit row this far outside the span is new whatever the noise
CONFIDENCE = 0.95


@dataclass(frozen=True)
class SpanCertificate:
    """What the last probes say: `stable` of them in a row stayed in the span.

    At `confidence`, at most `fraction_bound` of such probes leave it. `null_moves` of them were known points moved
    far into the null space; the answer there changed by at most `null_change`, relative to the spread of the answers.
    """

    stable: int
    fraction_bound: float
    confidence: float
    null_moves: int
    null_change: float
    gap: float
    gap_confidence: float

    @property
    def holds(self) -> bool:
        return self.stable > 0 and self.gap_confidence > 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class SpanResult(Result):
    """`gradients` holds every row that was seen, with its point, its value and its output; `basis` its row space.

    Rows are in the coordinates of `link` (identity, logit or log-ratio), so that value = gradient . point + intercept
    on each piece.
    """

    basis: Tensor               # (rank, d) orthonormal rows
    rank: int
    upper_bound: int            # no more than this can be in the span: rank when confirmed, else what is not excluded
    singular_values: Tensor     # (r,) of the unit rows
    directions: Tensor          # (r, d) right singular vectors, one per singular value
    noise_floor: float          # on the scale of singular_values
    gradients: Tensor           # (m, d)
    values: Tensor              # (m,)
    points: Tensor              # (m, d)
    outputs: Tensor             # (m,) which output each row belongs to
    link: str
    ranks: Tensor               # (m,) rank after each row

    @property
    def null_dimension(self) -> int:
        return self.directions.shape[1] - self.rank


class Seen:
    """All rows so far, which of them are informative, and an orthonormal basis grown by Gram-Schmidt."""

    def __init__(self, d: int, eps: float) -> None:
        self.d, self.eps = d, eps
        self.rows: list[Tensor] = []
        self.values: list[float] = []
        self.points: list[Tensor] = []
        self.outputs: list[int] = []
        self.ranks: list[int] = []
        self.useful: list[int] = []                             # rows that are neither zero nor repeats
        self.Q = torch.zeros(0, d, dtype=torch.float64)         # (r, d)
        self.U = torch.zeros(0, d, dtype=torch.float64)         # the useful rows, unit length
        self.noises: list[float] = []                           # relative error of each useful row
        self.measured = 0.0                                     # from repeats or rounded answers

    def add(self, x: Tensor, row: Tensor, value: float, output: int, noise: float) -> tuple[float, bool, bool]:
        """(novelty: how much of the unit row lies outside the span so far, zero?, repeat?)"""
        self.rows.append(row)
        self.values.append(value)
        self.points.append(x)
        self.outputs.append(output)
        self.ranks.append(self.ranks[-1] if self.ranks else 0)
        norm = float(row.norm())
        if norm == 0.0 or noise > 0.1:
            return 0.0, True, False
        noise = max(noise, 4 * self.eps)
        u = row / norm
        if len(self.U) and float((self.U - u).norm(dim=1).min()) <= 4 * noise:
            return 0.0, False, True
        self.useful.append(len(self.rows) - 1)
        self.U = torch.cat([self.U, u[None]])
        self.noises.append(noise)
        v = u - self.Q.T @ (self.Q @ u)
        v = v - self.Q.T @ (self.Q @ v)
        novelty = float(v.norm())
        if novelty > 4 * noise and len(self.Q) < self.d:
            self.Q = torch.cat([self.Q, v[None] / novelty])
        return novelty, False, False

    @property
    def typical(self) -> float:
        return sorted(self.noises)[len(self.noises) // 2] if self.noises else 4 * self.eps

    @property
    def floor(self) -> float:
        """Largest singular value that noise alone gives to len(U) weighted rows."""
        return float(2 * max(self.typical, self.measured) * (1 + (len(self.U) / self.d) ** 0.5))

    def decide(self, min_tail: int = TAIL) -> tuple[RankDecision, Tensor, Tensor]:
        """Rows noisier than most are scaled down until their noise is like the others': scale does not move a span."""
        weights = torch.tensor([min(1.0, self.typical / n) for n in self.noises], dtype=torch.float64)
        s, V = singular(self.U * weights[:, None])
        return decide_rank(s, floor=self.floor, min_tail=min_tail), s, V


def recover_span(g_or_f: GradientOracle | ValueOracle, *, rng: torch.Generator,
                 method: Literal["adaptive", "gaussian"] = "adaptive", points: Tensor | int | None = None,
                 data: Tensor | None = None, patience: int = PATIENCE, max_points: int | None = None,
                 noise: float | None = None, progress: Progress = silent) -> SpanResult:
    """The row space of the first layer, as far as gradients or values show it.

    points: for "gaussian", how many (default: d, or 4 d / 3 in a budget's reach) or the points themselves (n, d); for
    "adaptive", points to ask first. data: points of the kind the target was made for, mixed into the adaptive ones.
    noise: relative error of one gradient, if it is known to be larger than the arithmetic's.
    """
    if not isinstance(g_or_f, (GradientOracle, ValueOracle)):
        raise BadInput(f"recover_span needs a gradient or a value oracle, not {type(g_or_f).__name__}; "
                       f"from labels use recover_span_from_labels.")
    if method not in ("adaptive", "gaussian"):
        raise BadInput(f"method is 'adaptive' or 'gaussian', not {method!r}.")
    streams = Streams(rng)
    d, used = g_or_f.dim, g_or_f.used
    for name, given in (("points", points), ("data", data)):
        if isinstance(given, Tensor) and (given.ndim != 2 or given.shape[1] != d or len(given) == 0):
            raise BadInput(f"{name} must have shape (n, {d}) with at least one row, not {tuple(given.shape)}.")
    search = Search(g_or_f, streams, data=data, patience=patience, noise=noise, progress=progress,
                    max_points=max_points if max_points is not None else d + 8 * SILENCE)
    try:
        if method == "gaussian":
            search.all_at_once(listed_points(g_or_f, points, streams))
        else:
            search.adaptively(points if isinstance(points, Tensor) else None)
    except BudgetExhausted:
        search.stopped = "budget"
    parameters = {"method": method, "patience": patience, "max_points": max_points, "noise": noise,
                  "points": len(points) if isinstance(points, Tensor) else points}
    return search.result(g_or_f.used - used, Provenance("recover_span", streams.seed, parameters))


def listed_points(oracle: GradientOracle | ValueOracle, points: Tensor | int | None, streams: Streams) -> Tensor:
    if isinstance(points, Tensor):
        return points.double()
    n = points
    if n is None:
        per_point = 1 if isinstance(oracle, GradientOracle) else oracle.dim + 1
        n = oracle.dim + PATIENCE
        if oracle.remaining is not None:
            n = max(1, min(n, oracle.remaining // per_point))
    return gaussian_points(n, oracle.dim, rng=streams("points"), box=oracle.box)


class Search:
    """One run of recover_span: asks, keeps what was seen, and knows when to stop."""

    def __init__(self, oracle: GradientOracle | ValueOracle, streams: Streams, *, data: Tensor | None, patience: int,
                 noise: float | None, max_points: int, progress: Progress) -> None:
        self.oracle, self.patience, self.max_points, self.progress = oracle, patience, max_points, progress
        self.d = oracle.dim
        self.eps = float(torch.finfo(oracle.dtype).eps)
        self.seen = Seen(self.d, self.eps)
        if noise is not None:
            self.seen.measured = noise
        self.stream = PointStream(self.d, rng=streams("stream"), box=oracle.box,
                                  data=None if data is None else data.double())
        self.differences = None if isinstance(oracle, GradientOracle) else Differences(oracle, rng=streams("steps"))
        self.asked = 0
        self.stable = 0                     # probes in a row that could have opened a direction and did not
        self.pause = 0                      # the longest such run that a new direction ended
        self.repeats = 0                    # fresh points in a row that gave a gradient seen before
        self.null_moves, self.null_change = 0, 0.0
        self.stopped = ""
        self.unchecked = 0
        self.decision: RankDecision | None = None
        self.basis = torch.zeros(0, self.d, dtype=torch.float64)
        self.smallest = 1.0

    # asking

    def ask(self, x: Tensor) -> list[tuple[Tensor, float, int, float]]:
        """Rows at x (d,): (gradient, value, output, relative error)"""
        self.asked += 1
        if isinstance(self.oracle, GradientOracle):
            y, grad = self.oracle(x[None])
            row, value = grad[0].double(), float(y[0])
            return [(row, value, 0, self.row_noise(row, value))]
        assert self.differences is not None
        J = self.differences.at(x)
        self.unchecked += not J.checked
        if not J.checked:
            return []
        return [(J.rows[i], float(J.values[i]), int(J.outputs[i]), float(J.noise[i])) for i in range(len(J.rows))]

    def row_noise(self, row: Tensor, value: float) -> float:
        norm = float(row.norm())
        if norm == 0.0:
            return 0.0
        quantum = last_digit(row, self.eps)                     # explanations are often rounded for display
        rounded = quantum * self.d ** 0.5 / norm if quantum else 0.0
        # A probability near one has a gradient p (1 - p) (...) in which 1 - p has lost its digits.
        probabilities = 0.5 < value < 1 and all(0 <= v <= 1 for v in self.seen.values)
        lost = self.eps / (1 - value) if probabilities and len(self.seen.values) >= 4 else 0.0
        return max(4 * self.eps, rounded, lost)

    def take(self, x: Tensor, *, null_base: int | None = None) -> None:
        """Ask x, keep the rows, and see whether the span grew."""
        novelty, zero, repeat, first = 0.0, True, True, len(self.seen.rows)
        for row, value, output, noise in self.ask(x):
            n, z, r = self.seen.add(x, row, value, output, noise)
            novelty, zero, repeat = max(novelty, n), zero and z, repeat and (r or z)
        if null_base is None:
            self.stream.heard(x, zero=zero, repeat=repeat and not zero)
        before = self.decision
        if novelty > PLAIN:
            self.decision = None                                # plainly new: no need to look at the spectrum
            grown = True
        else:
            self.look()
            assert self.decision is not None
            grown = before is not None and self.decision.rank > before.rank
        for i in range(first, len(self.seen.ranks)):
            self.seen.ranks[i] = self.decision.rank if self.decision is not None else len(self.seen.Q)
        if null_base is not None and not grown:
            self.null_moves += 1
            spread = max(abs(v) for v in self.seen.values) or 1.0
            base = self.live_value(null_base)
            if first < len(self.seen.values):
                self.null_change = max(self.null_change, abs(self.seen.values[first] - base) / spread)
        self.count(grown=grown, zero=zero, repeat=repeat, moved=null_base is not None,
                   surprised=before is not None and before.gap_found)

    def count(self, *, grown: bool, zero: bool, repeat: bool, moved: bool, surprised: bool) -> None:
        if grown:
            # Only a pause after which a gap was already in sight is a warning; before it, small steps are the rule.
            self.pause = max(self.pause, self.stable) if surprised else self.pause
            self.stable, self.repeats = 0, 0
        elif zero:
            pass                                                # silence says nothing about the span
        elif repeat and not moved:
            self.repeats += 1
            self.stable += self.repeats > 8                     # the network has one piece wherever we look
        else:
            self.stable += 1

    def live_value(self, number: int) -> float:
        x = self.stream.live[number]
        return next(v for p, v in zip(self.seen.points, self.seen.values, strict=True) if p is x)

    def look(self) -> None:
        self.decision, s, V = self.seen.decide()
        self.basis = V[:self.decision.rank]
        self.smallest = float(s[self.decision.rank - 1]) if self.decision.rank else 1.0

    # the two methods

    def all_at_once(self, X: Tensor) -> None:
        remaining = self.oracle.remaining
        if isinstance(self.oracle, GradientOracle):
            if remaining is not None and remaining < len(X):
                self.stopped = "budget"
                X = X[:remaining]
            if len(X):
                y, grad = self.oracle(X)
                self.asked = len(X)
                for x, value, row in zip(X, y.tolist(), grad.double(), strict=True):
                    self.seen.add(x, row, value, 0, self.row_noise(row, value))
        else:
            for i, x in enumerate(X):
                for row, value, output, noise in self.ask(x):
                    self.seen.add(x, row, value, output, noise)
                self.progress("gradients", {"done": i + 1, "total": len(X), "rank": len(self.seen.Q)})

    def adaptively(self, first: Tensor | None) -> None:
        for x in (first.double() if first is not None else ()):
            self.take(x)
        next_repeat = REPEAT_AT
        while not self.finished():
            self.progress("gradients", {"rank": len(self.seen.Q), "asked": self.asked, "stable": self.stable})
            if self.asked >= next_repeat and self.stable == 0 and self.stream.live:
                next_repeat *= 4
                self.measure_noise()
            move = None
            D = self.decision
            if D is not None and D.kind == "noise" and D.gap >= CLIFF and self.stable % 2 == 1:
                # Only where the arithmetic is sharp: in noise a repeated gradient adds nothing to the tail.
                if isinstance(self.oracle, ValueOracle):
                    self.move_values(self.oracle)
                    continue
                move = self.stream.null_move(self.basis)
            if move is not None:
                self.take(move[1], null_base=move[0])
            else:
                self.take(self.stream.next())

    def move_values(self, f: ValueOracle) -> None:
        """Null moves for two rows each instead of a gradient; a gradient only where one of them shows."""
        moves = [m for m in (self.stream.null_move(self.basis) for _ in range(NULL_MOVES)) if m is not None]
        if not moves:
            self.stable += 1
            return
        x = torch.stack([self.stream.live[i] for i, _ in moves] + [x for _, x in moves])
        y = f(x).double()                                                           # (2n, k)
        n = len(moves)
        change = (y[n:] - y[:n]).abs().amax(1)                                      # (n,)
        steep = max(float(torch.stack(self.seen.rows).norm(dim=1).max()), 1e-300)
        # The basis is off by about noise / (smallest singular value kept): a move leaks that much of its length.
        leak = 10 * self.seen.floor / self.smallest
        allowed = leak * (x[n:] - x[:n]).norm(dim=1) * steep + 64 * self.eps * y.abs().max()
        if self.differences is not None:
            allowed = allowed + 2 * self.differences.quantum
        self.null_moves += n
        self.null_change = max(self.null_change, float(change.max() / y.abs().max().clamp_min(1e-300)))
        worst = int((change / allowed.clamp_min(1e-300)).argmax())
        if bool((change <= allowed).all()):
            self.stable += n
        else:
            self.take(x[n + worst])

    def measure_noise(self) -> None:
        """The same point again: what differs is noise."""
        x = self.stream.live[-1]
        rows = [r for r, p in zip(self.seen.rows, self.seen.points, strict=True) if p is x]
        for (again, _, _, _), row in zip(self.ask(x), rows, strict=False):
            change = float((again - row).norm() / row.norm().clamp_min(1e-300))
            self.seen.measured = max(self.seen.measured, change)

    def finished(self) -> bool:
        if self.asked >= self.max_points:
            self.stopped = "points"
            return True
        if self.stream.silent >= SILENCE and self.stream.silent >= self.asked // 2:
            self.stopped = "silence"
            return True
        D = self.decision
        if D is None:
            return False
        if D.rank >= self.d:
            return True                                         # nothing is left to find
        wait = self.patience + 3 * self.pause
        if D.kind == "noise" and D.gap >= CLIFF and self.stable >= wait:
            return True
        if D.gap_found and D.kind != "zero" and D.tail >= TAIL and D.p_value < 1e-3 and D.tail >= wait:
            return True
        return D.tail >= LONG_TAIL + wait and self.stable >= LONG_TAIL

    # what comes out

    def result(self, queries: int, provenance: Provenance) -> SpanResult:
        D, s, V = self.seen.decide(SHORT_TAIL)
        rank = D.rank
        status = self.status(D)
        confirmed = status.ok
        m, d = len(self.seen.rows), self.d
        stable = self.stable if provenance.parameters["method"] == "adaptive" else max(0, D.tail)
        certificate = SpanCertificate(
            stable=stable, fraction_bound=fraction_upper_bound(0, stable, CONFIDENCE) if stable else 1.0,
            confidence=CONFIDENCE, null_moves=self.null_moves, null_change=self.null_change, gap=D.gap,
            gap_confidence=D.confidence)
        empty = torch.zeros(0, d, dtype=torch.float64)
        return SpanResult(
            status=status, queries=queries, certificate=certificate, provenance=provenance,
            basis=V[:rank].clone(), rank=rank, upper_bound=rank if confirmed else d, singular_values=s, directions=V,
            noise_floor=D.noise_floor, gradients=torch.stack(self.seen.rows) if m else empty,
            values=torch.tensor(self.seen.values, dtype=torch.float64),
            points=torch.stack(self.seen.points) if m else empty, outputs=torch.tensor(self.seen.outputs),
            link=(self.differences.link or "identity") if self.differences is not None else "identity",
            ranks=torch.tensor(self.seen.ranks))

    def status(self, D: RankDecision) -> Status:
        notes: list[str] = []
        if self.unchecked:
            notes.append(f"{self.unchecked} points were dropped: folds too close for differences.")
        if D.kind == "tail":
            notes.append(f"The {D.tail} values after the gap are flat near {D.noise_floor:.1e}, above what rounding "
                         f"explains: a rest that the network hardly uses, not counted.")
        extra = tuple(notes)
        found = f"{D.rank} of at most {self.d} directions were found"
        if len(self.seen.useful) == 0:
            asked = f"all {self.asked} gradients that were asked are zero"
            if self.stopped == "budget":
                return Status("budget", f"The budget ran out: {asked}.", extra)
            return Status("constant", f"The target seems to ignore its input: {asked}. If it does answer to some "
                          f"inputs, pass them as data=.", extra)
        if D.rank >= self.d:
            return Status("ok", f"Full rank: all {self.d} directions matter and there is no null space.", extra)
        if D.gap_found:
            return Status("ok", f"{found}; the gap after them is {D.gap:.3g} wide.", extra)
        if self.stopped == "budget":
            return Status("budget", f"The budget ran out: {found}, and no gap says that these are all.", extra)
        if self.stopped == "silence":
            return Status("silent", f"{found}, then {self.stream.silent} gradients in a row were zero; pass points "
                          f"that the target answers to as data=.", extra)
        if D.tail == 0:
            return Status("unfinished", f"{found}, and every gradient still opened a new one: ask more points.", extra)
        return Status("no_gap", f"{found} above the noise floor of {D.noise_floor:.1e}, but the singular values sink "
                      f"into it without a gap: the true rank may be larger.", extra)
