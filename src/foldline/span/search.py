"""The search behind recover_span: where to ask next, what each answer adds, and when to stop."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from foldline.oracles.protocols import GradientOracle, ValueOracle
from foldline.randomness import Streams
from foldline.results import Progress
from foldline.span.differences import last_digit
from foldline.span.long_steps import WELL, LongSteps
from foldline.span.points import PointStream
from foldline.span.rank import CLIFF, MIN_GAP, ROUGH_GAP, TAIL, RankDecision
from foldline.span.seen import Seen
from foldline.span.weak import WeakDirections

NULL_MOVES = 16         # for values, where a move costs two rows
SILENCE = 64            # zero gradients in a row before the search for a live point ends
ONE_PIECE = 16          # repeats in a row before "the network is linear there" is believed
LONG_TAIL = 24          # probes below the floor without a gap: the spectrum sinks into the noise
REPEAT_AT = 128         # probes without a floor in sight: ask one point again, to measure noise
MISSED = 2e-4           # chance of stopping too early that is accepted
EVIDENCE = 80           # probes that confirm, times the rank
LOOKS = 48              # spectra are computed every (rows / LOOKS) probes
HUNT = 12               # halvings of a segment on which the answer moved
GOOD = 8                # points with steps as long as all that was found allows, before a rough search may end
PLAIN = 1e-3            # a unit row this far outside the span is new whatever the noise

Row = tuple[Tensor, float, int, float, float]
"""gradient (d,), value, output, relative error, and the part of it that is certain"""


class Search:
    def __init__(self, oracle: GradientOracle | ValueOracle, streams: Streams, *, data: Tensor | None, patience: int,
                 noise: float | None, max_points: int, progress: Progress, within: Tensor | None = None) -> None:
        self.oracle, self.patience, self.max_points, self.progress = oracle, patience, max_points, progress
        self.d = oracle.dim
        self.eps = float(torch.finfo(oracle.dtype).eps)
        self.seen = Seen(self.d, self.eps, MIN_GAP if isinstance(oracle, GradientOracle) else ROUGH_GAP)
        self.noise_known = noise is not None
        if noise is not None:
            self.seen.measured = noise
        self.stream = PointStream(self.d, rng=streams("stream"), box=oracle.box,
                                  data=None if data is None else data.double())
        self.differences = None
        if not isinstance(oracle, GradientOracle):
            self.differences = LongSteps(oracle, rng=streams("steps"), within=within)
        self.weak = None if self.differences is None else WeakDirections(self.differences)
        self.one_row = isinstance(oracle, GradientOracle) or oracle.outputs == 1
        # Several outputs share the rows of one point and are not dead together: points from anywhere differ more.
        self.stream.plain = not self.one_row
        self.asked = 0
        self.told = 0                       # rows that the differences know of
        self.signature = 0.0                # what the last point answered, to tell saturated points apart
        self.stable = 0                     # probes in a row that could have opened a direction and did not
        self.missed = 0                     # such probes that a new direction followed after all
        self.repeats = 0                    # fresh points in a row that gave a gradient seen before
        self.null_moves, self.null_change = 0, 0.0
        self.stopped = ""                   # "budget", "points", "silence" or, when it ended well, ""
        self.unchecked = 0                  # points dropped because folds were too close
        self.decision: RankDecision | None = None
        self.basis = torch.zeros(0, self.d, dtype=torch.float64)
        self.smallest = 1.0                 # last singular value that counts

    # The two ways to ask

    def all_at_once(self, X: Tensor) -> None:
        """X (n, d), fixed beforehand; what a budget does not cover is left out."""
        if isinstance(self.oracle, GradientOracle):
            remaining = self.oracle.remaining
            if remaining is not None and remaining < len(X):
                self.stopped = "budget"
                X = X[:remaining]
            if len(X):
                y, grad = self.oracle(X)
                self.asked = len(X)
                for x, value, row in zip(X, y.tolist(), grad.double(), strict=True):
                    self.seen.add(x, row, value, 0, self.row_noise(row, value))
            return
        for i, x in enumerate(X):
            for row, value, output, noise, least in self.ask(x):
                self.seen.add(x, row, value, output, noise, least)
            self.progress("gradients", {"done": i + 1, "total": len(X), "rank": len(self.seen.Q)})

    def adaptively(self, first: Tensor | None) -> None:
        for x in (first.double() if first is not None else ()):
            self.take(x)
        repeat_at = REPEAT_AT
        while not self.finished():
            self.progress("gradients", {"rank": len(self.seen.Q), "asked": self.asked, "stable": self.stable})
            if self.asked >= repeat_at and self.stable == 0 and self.stream.live and not self.rough:
                repeat_at *= 4
                self.measure_noise()
            D = self.decision
            cliff = D is not None and D.kind == "noise" and D.gap >= CLIFF
            cheap = D is not None and D.gap_found and isinstance(self.oracle, ValueOracle)
            if (cliff or cheap or self.repeats >= ONE_PIECE // 2) and self.stable % 3 > 0:
                # From gradients only where the arithmetic is sharp: a repeated gradient adds nothing to a noisy tail.
                self.move_away()
            else:
                self.stream.known, self.stream.settled = self.seen.Q, D is not None
                self.take(self.chosen())

    def finished(self) -> bool:
        """Enough was seen, and what is weak was asked about; a verdict that changes the rank reopens the search."""
        if not self.enough():
            return False
        if self.weak is None or self.stopped or not self.weak.review(self.seen):
            return True
        self.look()
        self.stable = 0
        return False

    def enough(self) -> bool:
        if self.asked >= self.max_points:
            self.stopped = "points"
            return True
        if self.stream.silent >= SILENCE and self.stream.silent >= self.asked // 2:
            self.stopped = "silence"
            return True
        D = self.decision
        if D is None and len(self.seen.Q) < self.d:
            return False
        if D is None or D.rank >= self.d:
            if not self.noise_known:
                self.measure_noise()                            # noise looks like full rank: ask one point again
                self.look()
                return self.decision is not None and self.decision.rank >= self.d
            return D is not None                                # nothing is left to find
        wait = self.wait()
        if D.kind == "noise" and D.gap >= CLIFF and self.stable >= wait:
            return True
        # Several outputs give several rows at one point: the tail must come from several points too.
        # While rows are still getting better, weaker directions may yet show.
        if D.gap_found and D.kind != "zero" and D.tail >= max(TAIL, wait) and D.p_value < 1e-3 and \
                (self.stable >= max(wait, 6) or self.one_row) and not (self.rough and self.seen.good(D.rank) < GOOD):
            return True
        if self.repeats >= ONE_PIECE and D.tail == 0 and self.stable >= wait:
            return True
        return D.tail >= LONG_TAIL + wait and self.stable >= LONG_TAIL

    def wait(self) -> int:
        """Probes in a row that must add nothing before the span is called complete.

        If a fraction q of probes misses what is still hidden, n of them all miss with probability q^n. The run itself
        estimates q (rule of succession): (misses before the last success + 1) / (successes + misses + 2). At rank 80
        without a miss two probes are enough for MISSED. The last direction may be rarer than the first ones, and a
        short run says little about that: where few were found, EVIDENCE / rank probes cost little and are asked.
        """
        found = len(self.seen.Q)
        q = (self.missed + 1) / (found + self.missed + 2)
        return max(self.patience, math.ceil(math.log(MISSED) / math.log(q)), math.ceil(EVIDENCE / max(found, 4)))

    # One point

    @property
    def rough(self) -> bool:
        """From values with few digits: rows differ in how good they are, and say so."""
        return self.differences is not None and self.differences.rough

    def tell(self) -> None:
        """Rough differences step by what is known: tell them, once after each point."""
        if self.differences is not None and self.rough and self.told != len(self.seen.rows):
            self.seen.rough, self.told = True, len(self.seen.rows)
            self.differences.know(*self.seen.shown_well(WELL))

    def chosen(self) -> Tensor:
        """The next point; where digits are scarce and inputs many, the best of a few."""
        x = self.stream.next()
        n = 1 if self.differences is None or self.stream.dead else self.differences.candidates()
        if self.differences is None or n == 1:
            return x
        self.tell()
        points = torch.cat([x[None], self.stream.elsewhere(n - 1)])
        best = self.differences.best_of(points)
        self.stream.walking = self.stream.walking and best == 0
        return points[best]

    def ask(self, x: Tensor) -> list[Row]:
        if isinstance(self.oracle, GradientOracle):
            y, grad = self.oracle(x[None])
            row, value = grad[0].double(), float(y[0])
            noise = self.row_noise(row, value)
            rows = [(row, value, 0, noise, noise)]
            self.signature = value
        else:
            assert self.differences is not None
            self.tell()
            J = self.differences.at(x)
            assert self.weak is not None
            self.weak.steps[self.seen.group + 1] = J.step, J.outputs
            self.signature = J.signature
            self.unchecked += not J.checked
            least = J.noise if J.least is None else J.least
            rows = [(J.rows[i], float(J.values[i]), int(J.outputs[i]), float(J.noise[i]), float(least[i]))
                    for i in range(len(J.rows))] if J.checked else []
        self.asked += 1
        return rows

    def row_noise(self, row: Tensor, value: float) -> float:
        norm = float(row.norm())
        if norm == 0.0:
            return 0.0
        quantum = last_digit(row, self.eps)                     # explanations are often rounded for display
        rounded = 0.3 * quantum * self.d ** 0.5 / norm if quantum else 0.0
        # A probability near one has a gradient p (1 - p) (...) in which 1 - p has lost its digits.
        probabilities = 0.5 < value < 1 and all(0 <= v <= 1 for v in self.seen.values)
        lost = self.eps / (1 - value) if probabilities and len(self.seen.values) >= 4 else 0.0
        return max(4 * self.eps, rounded, lost)

    def take(self, x: Tensor, *, fresh: bool = True) -> bool:
        """Ask x, keep its rows, and say whether the span grew."""
        novelty, zero, repeat, first, known = 0.0, True, True, len(self.seen.rows), len(self.seen.Q)
        for grad, value, output, noise, least in self.ask(x):
            n, z, r = self.seen.add(x, grad, value, output, noise, least)
            novelty, zero, repeat = max(novelty, n), zero and z, repeat and (r or z)
        if fresh:
            row: Tensor | None = next((r for r in self.seen.rows[first:] if float(r.norm()) > 0), None)
            self.stream.saturates = self.bounded()
            self.stream.heard(x, zero=zero, repeat=repeat and not zero, answer=self.signature, row=row, share=novelty)
        before = self.decision
        if novelty > max(PLAIN, 4 * self.seen.floor):
            self.decision, grown = None, True                   # plainly new: no need to look at the spectrum
        elif before is not None and novelty <= self.seen.floor and before.kind == "noise" and before.gap >= CLIFF:
            grown = False                                       # plainly nothing new
            self.decision = replace(before, tail=before.tail + len(self.seen.rows) - first)
        elif len(self.seen.U) % max(1, len(self.seen.U) // LOOKS):
            self.mark_ranks(first)                              # a spectrum now and then is enough when it is large
            return False
        else:
            grown = self.look().rank > (before.rank if before is not None else known)
        self.mark_ranks(first)
        self.count(grown=grown, zero=zero, repeat=repeat and fresh,
                   surprised=before is not None and before.gap_found)
        return grown

    def bounded(self) -> bool:
        """The output looks like a probability: behind a link, or always in [0, 1] and not simply linear from 0 on."""
        if self.differences is not None:
            return self.differences.link not in (None, "identity")
        if not all(0 <= v <= 1 for v in self.seen.values):
            return False
        return not any(v > 0 and abs(v - float(g @ x)) <= 1e-6 * v for v, g, x in
                       zip(self.seen.values, self.seen.rows, self.seen.points, strict=True))

    def mark_ranks(self, first: int) -> None:
        for i in range(first, len(self.seen.ranks)):
            self.seen.ranks[i] = self.decision.rank if self.decision is not None else len(self.seen.Q)

    def count(self, *, grown: bool, zero: bool, repeat: bool, surprised: bool) -> None:
        if grown:
            # Only misses after a gap was already in sight count; before it, small steps are the rule.
            self.missed += self.stable if surprised else 0
            self.stable = self.repeats = self.null_moves = 0
            self.null_change, self.stream.mirrored = 0.0, None
        elif zero:
            pass                                                # silence says nothing about the span
        elif repeat:
            self.repeats += 1
            self.stable += self.repeats > ONE_PIECE // 2        # the network has one piece wherever we look
        else:
            self.stable += 1

    def look(self) -> RankDecision:
        decision, s, V = self.seen.decide()
        self.decision, self.basis = decision, V[:decision.rank]
        self.smallest = float(s[decision.rank - 1]) if decision.rank else 1.0
        return decision

    # Confirming

    def move_away(self) -> None:
        """Known points, moved far into the null space of the basis: if the span is complete, nothing changes there."""
        wanted = NULL_MOVES if isinstance(self.oracle, ValueOracle) else 1
        moves = [m for m in (self.stream.null_move(self.basis) for _ in range(wanted)) if m is not None]
        if not moves:
            self.take(self.stream.next())
            return
        bases, moved = torch.stack([b for b, _ in moves]), torch.stack([m for _, m in moves])   # (n, d) each
        if self.differences is not None:
            moved = bases + self.differences.allowed(moved - bases)
        n = len(moves)
        if isinstance(self.oracle, ValueOracle):
            y = self.oracle(torch.cat([bases, moved])).double()                     # (2n, k)
            if bool(self.changed(bases, moved, y).any()):
                worst = int((y[n:] - y[:n]).abs().amax(1).argmax())
                self.hunt_values(self.oracle, bases[worst], moved[worst])
                return
            if not self.sensitive(bases, moved, y):
                self.take(self.stream.next())                   # too noisy for moves to show anything
                return
            self.stable += n
        else:
            if self.take(moved[0], fresh=False):
                return
            before = next(v for p, v in zip(self.seen.points, self.seen.values, strict=True) if p is moves[0][0])
            y = torch.tensor([[before], [self.seen.values[-1]]], dtype=torch.float64)
            if bool(self.changed(bases, moved, y).any()):
                self.stable = 0
                self.hunt(bases[0], moved[0], before, self.seen.values[-1])
                return
        self.null_moves += n
        largest = max(map(abs, self.seen.values), default=0.0) or 1.0
        self.null_change = max(self.null_change, float((y[n:] - y[:n]).abs().max()) / largest)

    def hunt(self, a: Tensor, b: Tensor, at_a: float, at_b: float) -> None:
        """The answer moved between a and b, though b - a is in the null space of the basis: some gradient on the way
        is not in the span. Halve towards the part that moves until one shows."""
        for _ in range(HUNT):
            mid = 0.5 * (a + b)
            if self.take(mid, fresh=False):
                return
            value = self.seen.values[-1]
            if abs(value - at_a) > abs(at_b - value):
                b, at_b = mid, value
            else:
                a, at_a = mid, value

    def hunt_values(self, f: ValueOracle, a: Tensor, b: Tensor) -> None:
        """The same from values: two grids of HUNT points each, then one gradient where the answer is steepest."""
        for _ in range(2):
            t = torch.linspace(0, 1, HUNT, dtype=torch.float64)[:, None]
            line = a + t * (b - a)                                                  # (HUNT, d)
            y = f(line).double()                                                    # (HUNT, k)
            i = int((y[1:] - y[:-1]).abs().amax(1).argmax())
            a, b = line[i], line[i + 1]
        self.stable = 0
        self.take(0.5 * (a + b))

    def changed(self, bases: Tensor, moved: Tensor, y: Tensor) -> Tensor:
        """(n,): the answer moved by more than the basis' own error and rounding explain."""
        n = len(bases)
        beyond: Tensor = (y[n:] - y[:n]).abs().amax(1) > self.allowed(bases, moved, y)
        return beyond

    def allowed(self, bases: Tensor, moved: Tensor, y: Tensor) -> Tensor:
        # The basis is off by about noise / (smallest singular value kept): a move leaks that much of its length.
        leak = 5 * self.seen.floor / self.smallest
        quantum = 0.0 if self.differences is None else 2 * self.differences.quantum
        rounding = 64 * self.eps * float(y.abs().max())
        bound: Tensor = leak * (moved - bases).norm(dim=1) * self.steep() + rounding + quantum
        return bound

    def sensitive(self, bases: Tensor, moved: Tensor, y: Tensor) -> bool:
        """A missing direction, met by a move's 1 / sqrt(d) share, would have shown ten times over."""
        share = (moved - bases).norm(dim=1) * self.steep() / self.d ** 0.5
        return bool((self.allowed(bases, moved, y) < 0.1 * share).all())

    def steep(self) -> float:
        return max(float(row.norm()) for row in self.seen.rows)

    def measure_noise(self) -> None:
        """The same point again: what differs is noise."""
        self.noise_known = True
        if not self.stream.live:
            return
        x = self.stream.live[-1]
        rows = [r for r, p in zip(self.seen.rows, self.seen.points, strict=True) if p is x]
        for (again, *_), row in zip(self.ask(x), rows, strict=False):
            change = float((again - row).norm() / row.norm().clamp_min(1e-300))
            self.seen.measured = max(self.seen.measured, change)
