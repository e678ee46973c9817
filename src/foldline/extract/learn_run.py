"""The stages of learning: hand over, look, listen, search lines, refit, certify."""

from __future__ import annotations

import math

import numpy as np
import torch

from foldline.extract.learn_certificate import SMALL, LearnCertificate, certify, probes_wanted
from foldline.extract.learn_handover import try_extraction
from foldline.extract.learn_lines import LineReport, add_units_of_line
from foldline.extract.learn_merge import merge_within
from foldline.extract.learn_model import EPS, Array, Asker, Model, fold_into_affine
from foldline.extract.learn_noise import measure_noise
from foldline.extract.learn_pieces import line_grid
from foldline.extract.learn_polish import HELD_OUT, MOST_PARAMETERS, grow, polish
from foldline.extract.learn_result import LearnResult, Trace
from foldline.oracles.protocols import ValueOracle
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, Status

FIRST_LOOK = 32             # probes before the first line; they screen every later model for nothing
EXPLAINED = 1e-3            # half of the points known to this, relative: a network with a gap, not a wrong one
FIRST_GRID, NEXT_GRID = 48, 40
OVERHEARD = 4.0             # a noise that a failed extraction measured, over the one measured directly
RUNAWAY = 1e8               # a fitted unit's size over the largest answer


class Run:
    """What a run carries from stage to stage, so that a budget that ends leaves the best so far."""

    def __init__(self, f: ValueOracle, epsilon: float, delta: float, relative: bool, kurtosis: float | None,
                 resolution: float, max_lines: int, hand_over: torch.Generator | None, streams: Streams,
                 progress: Progress) -> None:
        self.ask = Asker(f)
        self.hand_over, self.handed_over = hand_over, False          # extraction's own generator; None: not tried
        self.epsilon, self.delta, self.relative = epsilon, delta, relative
        self.max_lines, self.progress = max_lines, progress
        self.d, self.m = self.ask.d, self.ask.m
        self.width = resolution * math.sqrt(self.d)
        self.rng = {name: np.random.default_rng(streams.integer(name))
                    for name in ("look", "lines", "steps", "probes", "mix", "noise", "polish", "trace")}
        mix = self.rng["mix"].standard_normal(self.m)
        self.mix: Array = mix / np.linalg.norm(mix) if self.m > 1 else np.ones(1)
        self.model = Model.empty(self.d, self.m)
        self.best = self.model.copy()
        self.best_error = float("inf")
        self.x: Array = np.zeros((0, self.d))                       # every Gaussian point asked so far
        self.y: Array = np.zeros((0, self.m))
        self.kurtosis = kurtosis
        self.certificate: LearnCertificate | None = None
        self.reports: list[LineReport] = []
        self.history: list[tuple[int, float]] = []
        self.notes: list[str] = []
        self.before_lines = self.model
        self.tests = 0
        self.dropped = 0
        self.merged: tuple[tuple[int, ...], ...] = ()
        self.out_of_budget = False

    # What is known of the target's size.

    @property
    def sd(self) -> float:
        if not len(self.y):
            return 0.0
        sd = float(np.sqrt(self.y.var(0).sum()))
        return sd if sd > 64 * EPS * float(np.abs(self.y).max()) else 0.0       # a constant's rounding is no size

    @property
    def target(self) -> float:
        """The L2 error to reach, in absolute units: what is wanted, but never below the answers' own noise."""
        return max(self.wanted, self.floor)

    @property
    def wanted(self) -> float:
        return self.epsilon * self.sd if self.relative else self.epsilon

    @property
    def good_enough(self) -> bool:
        """Worth fresh probes: half of what is wanted, or all that the answers' noise lets one see."""
        return self.best_error <= max(0.5 * self.wanted, self.floor)

    @property
    def floor(self) -> float:
        """Residuals of a perfect model would still be this large."""
        return 2.0 * math.sqrt(self.m) * self.ask.eta

    def go(self) -> None:
        if self.hand_over is not None and self.extraction_passes(self.hand_over):
            return
        if self.out_of_budget:                                      # more folds than rows: no line would end
            return
        self.look()
        self.listen()
        stale = refits = 0
        for number in range(self.max_lines):
            before = self.best_error
            self.search_line(number, stale)
            if self.good_enough and self.passes():
                return self.averaged()
            stale = stale + 1 if self.best_error > 0.9 * before else 0
            if stale >= (2 if self.noisy else 8):
                stale, refits = 0, refits + 1
                improved = self.refit()
                if self.best_error <= self.target and self.passes():
                    return self.averaged()
                if refits >= 6 or (refits >= 2 and not improved):
                    break
        self.refit(growing=True)
        self.passes()

    def averaged(self) -> None:
        """Where the answers' noise hides what is still wrong, a sample of them averages it away."""
        if self.floor > self.wanted:
            self.refit(growing=True)
            self.passes()

    @property
    def noisy(self) -> bool:
        return self.ask.eta > 1e-9 * max(self.sd, self.ask.magnitude)

    def extraction_passes(self, rng: torch.Generator) -> bool:
        """Try exact extraction; its network must explain the points it was not fitted to, then fresh probes."""
        found = try_extraction(self.ask.oracle, outputs=self.m, reserve=FIRST_LOOK, rng=rng)
        self.take(*found.fresh)
        unseen = len(self.x)
        self.take(*found.other)
        self.progress("extraction", {"rows": self.ask.rows, "units": found.model.h if found.model else 0})
        if found.model is None:
            self.out_of_budget = found.short
            return False
        kept, self.model = self.model, found.model
        self.hear(found.noise)
        self.remember()
        self.tests = found.checks - 1                               # each network that had fresh points was a test
        if self.good_enough and self.passes(unseen=unseen):
            self.handed_over = True
            return True
        off = np.sqrt(np.square(self.y - self.model(self.x)).sum(1))
        if float(np.median(off)) <= EXPLAINED * self.sd:
            self.model.doubt(float(np.median(off)), self.rng["polish"])
        else:
            self.model = kept                                       # a wrong network is no start
        return False

    def look(self) -> None:
        if len(self.x) < FIRST_LOOK:
            self.grow_pool(self.gaussian(FIRST_LOOK - len(self.x), "look"))
        if not self.model.h:
            self.model.q = self.y.mean(0)
        self.remember()
        self.progress("look", {"rows": self.ask.rows, "deviation": self.sd})

    def listen(self) -> None:
        """How exact the answers are, said before rows are spent on what they cannot show."""
        noise = measure_noise(self.ask, self.gaussian(4, "noise"), self.y, self.rng["noise"])
        if self.ask.eta < OVERHEARD * noise:                        # extraction, which did not get through, says more
            self.ask.eta = 0.0
            self.notes.clear()
        self.hear(noise)
        self.progress("noise", {"rows": self.ask.rows, "noise": self.ask.eta})

    def hear(self, noise: float) -> None:
        """The answers are off by this much: if that is more than was asked for, it is said once."""
        self.ask.eta = max(noise, self.ask.eta)
        if not self.notes and self.relative and self.sd > 0 and self.floor > self.epsilon * self.sd:
            self.notes.append(f"Known from the first {self.ask.rows} rows: the answers are off by about "
                              f"{self.ask.eta:.2g}, so relative errors below {self.floor / self.sd:.2g} cannot be "
                              f"shown.")
            self.progress("floor", {"reachable": self.floor / self.sd, "epsilon": self.epsilon})

    def gaussian(self, n: int, stream: str) -> Array:
        return self.ask.points(self.rng[stream].standard_normal((n, self.d)))

    def grow_pool(self, x: Array) -> Array:
        y = self.ask(x)
        self.take(x, y)
        return y

    def take(self, x: Array, y: Array) -> None:
        self.ask.note(x, y)
        self.x, self.y = np.concatenate([self.x, x]), np.concatenate([self.y, y])

    def search_line(self, number: int, stale: int = 0) -> None:
        rng = self.rng["lines"]
        v = rng.standard_normal(self.d)
        v /= np.linalg.norm(v)
        if number == 0:
            x0, grid = rng.standard_normal(self.d), line_grid(self.d, points=FIRST_GRID)
        else:                                                       # through where the residual is large
            r = np.square(self.y - self.model(self.x)).sum(1)
            weight = r / r.sum() if r.sum() > 0 else None
            x0 = self.x[rng.choice(len(r), p=weight)] if number % 4 else rng.standard_normal(self.d)
            # A residual that few points see is narrow there: a ladder of steps around the point finds its folds.
            narrow = float((r > 1e-2 * r.max()).mean()) < 0.1 if r.max() > 0 else True
            grid = line_grid(self.d, points=NEXT_GRID, centre=narrow)
        # Where lines stopped helping, the errors of units already found hide the rest: rougher units, then their rest.
        loose = 0.25 if self.noisy else 1e-3 * 10.0 ** min(stale // 2, 2)
        before = self.model.copy()
        if number == 0:
            self.before_lines = before
        report = add_units_of_line(self.ask, self.model, x0, v, grid, mix=self.mix, resolution=self.width,
                                   rng=self.rng["steps"], loose=loose)
        self.reports.append(report)
        if stale >= 2 and not self.noisy and not self.score(self.model) <= self.score(before):
            self.model = before                                     # rough units of a target that has none: no help
        self.remember()
        self.progress("lines", {"rows": self.ask.rows, "units": self.model.h, "error": self.relative_error(),
                                "lines": number + 1})

    def relative_error(self) -> float:
        return self.best_error / self.sd if self.sd > 0 else self.best_error

    def score(self, model: Model) -> float:
        return float(np.sqrt(np.square(self.y - model(self.x)).sum(1).mean()))

    def remember(self) -> None:
        """Keep the model that does best on every Gaussian point asked so far."""
        error = self.score(self.model)
        self.best_error = self.score(self.best)
        if not error > self.best_error:                             # NaN never wins
            self.best, self.best_error = self.model.copy(), error
        self.history.append((self.ask.rows, self.relative_error()))

    def refit(self, growing: bool = False) -> bool:
        """Regression on Gaussian samples: weights first, then all parameters. True if it helped.

        growing: also add units that only the sample speaks for. Rows are left for a certificate.
        """
        size = self.best.h * (self.d + 1) + self.d + 1
        # Too many parameters to fit them all: then only the output weights are, and they need fewer rows.
        enough = max(8 * size, 200 * self.d, 2000) if size <= MOST_PARAMETERS else 3 * (self.best.h + self.d + 1)
        want = enough - len(self.x)
        remaining = self.ask.oracle.remaining
        if remaining is not None:
            later = 0 if self.out_of_budget else probes_wanted(self.d, self.delta, self.kurtosis)[0]
            want = min(want, remaining - later)
        if want > 0:
            self.grow_pool(self.gaussian(want, "polish"))
        if growing:
            self.model = grow(self.best, self.x, self.y, floor=self.ask.eta, rng=self.rng["polish"])
        else:
            self.model = polish(self.best, self.x, self.y, floor=self.ask.eta)
        # A unit that no sample sees can be fitted to any size: it would only hide what the next lines could find.
        self.model.keep(np.abs(self.model.A).max(0, initial=0.0) <= RUNAWAY * max(self.ask.magnitude, 1e-300))
        before = self.relative_error()
        self.remember()
        # What is left now is the error of the fit, spread over the units.
        self.model = self.best.copy()
        self.model.doubt(self.best_error, self.rng["polish"])
        self.progress("refit", {"rows": self.ask.rows, "units": self.model.h, "error": self.relative_error()})
        return self.relative_error() < 0.7 * before

    def passes(self, unseen: int = 0) -> bool:
        """Tidy the best model and put it before probes it has not seen; the first `unseen` of the pool are such."""
        model = self.best.copy()
        dropped = fold_into_affine(model)
        model, merged = merge_within(model, 0.1 * self.target, self.rng["probes"])
        self.tests += 1
        confidence_left = self.delta / (self.tests * (self.tests + 1))      # the tests' failures add up to delta
        few, many = probes_wanted(self.d, confidence_left, self.kurtosis)
        fresh = self.gaussian(max(many - unseen, 0), "probes")
        residual = self.y[:unseen] - model(self.x[:unseen])
        # A wrong model shows in few probes, an exact one needs fewer than one that is just good enough.
        for until in (min(unseen + 64, few), few, many):
            square = np.square(residual).sum(1)
            enough = until > few and square.max() <= (SMALL * self.wanted) ** 2
            if enough or (len(square) > unseen and square.mean() > self.target ** 2):
                break
            if until > len(residual):
                part = fresh[len(residual) - unseen:until - unseen]
                residual = np.concatenate([residual, self.grow_pool(part) - model(part)])
        certificate = certify(residual, sd=self.sd, epsilon=self.epsilon, delta=confidence_left,
                              relative=self.relative, noise=self.ask.eta)
        good = certificate.squared_error_bound <= max(self.target ** 2, 2 * self.floor ** 2)
        if self.certificate is None or good or certificate.bound < self.certificate.bound:
            self.certificate, self.final = certificate, model
            self.dropped, self.merged = dropped, merged
        self.remember()
        self.progress("certificate", {"rows": self.ask.rows, "units": model.h, "error": certificate.relative_error,
                                      "bound": certificate.bound})
        return good

    def result(self, provenance: Provenance) -> LearnResult:
        if self.certificate is None:
            self.final = self.best.copy()
            self.dropped = fold_into_affine(self.final)
            self.certificate = certify(self.y[:0], sd=self.sd, epsilon=self.epsilon, delta=self.delta,
                                       relative=self.relative, noise=self.ask.eta)
        return LearnResult(status=self.status(), queries=self.ask.rows, certificate=self.certificate,
                           provenance=provenance, network=self.final.network(), units=self.final.h,
                           merged=self.merged, dropped=self.dropped,
                           tangles=sum(len(r.tangles) for r in self.reports), lines=len(self.reports),
                           handed_over=self.handed_over,
                           noise=self.ask.eta, history=tuple(self.history), trace=self.trace())

    def status(self) -> Status:
        assert self.certificate is not None
        notes = tuple(self.notes)
        held = np.arange(len(self.x)) % HELD_OUT == 0               # rows that no fit has seen
        rest = np.square(self.y[held] - self.final(self.x[held])).sum(1)
        error = math.sqrt(float(rest.mean())) / (self.sd or 1.0) if held.any() else float("inf")
        reached = f"reached a relative error of about {error:.2g}"
        if self.certificate.holds:
            return Status("ok", "Done.", notes)
        if self.out_of_budget:
            return Status("budget", f"The budget ended after {self.ask.rows} rows with epsilon={self.epsilon:g} not "
                          f"certified; {reached}. Allow more rows or a larger epsilon.", notes)
        if self.floor > self.wanted:
            return Status("noise", f"The answers' own noise hides errors below {self.certificate.floor:.2g}; "
                          f"{reached}. Ask for a larger epsilon.", notes)
        return Status("unverified", f"{len(self.reports)} lines and a regression did not reach "
                      f"epsilon={self.epsilon:g}; {reached}. The target may not be a one-hidden-layer ReLU network.",
                      notes)

    def trace(self) -> Trace:
        """The first line as its pieces were seen; after a hand-over a Gaussian line of the learnt network."""
        if self.reports and len(self.reports[0].pieces.line):
            report = self.reports[0]
            x0, v, pieces = report.origin, report.direction, report.pieces
            t = np.stack([pieces.start, pieces.stop], 1).reshape(-1)
            height = np.repeat(pieces.value, 2) + np.repeat(pieces.slope, 2) * (t - np.repeat(pieces.middle, 2))
            height = height + self.before_lines(x0 + t[:, None] * v) @ self.mix     # the pieces are of the residual
            folds = 0.5 * (pieces.stop[:-1] + pieces.start[1:])
        else:
            x0, v = self.rng["trace"].standard_normal((2, self.d))
            v = v / np.linalg.norm(v)
            with np.errstate(divide="ignore", invalid="ignore"):
                folds = np.sort(-(self.final.W @ x0 + self.final.b) / (self.final.W @ v))
            folds = folds[np.abs(folds) <= 6 * math.sqrt(self.d)]
            t = np.union1d(np.linspace(-6, 6, 25) * math.sqrt(self.d), folds)
            height = np.full(len(t), np.nan)
        learnt = self.final(x0 + t[:, None] * v) @ self.mix
        return Trace(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (t, height, learnt, folds)))
