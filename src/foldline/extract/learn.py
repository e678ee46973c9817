"""Learn any one-hidden-layer ReLU network from values: close, cancelling, superfluous units and bumps included.

The practical form of paper 001 (the literal one is `worst_case`, method="theory"). One Gaussian line after another is
searched at all scales in the residual F - F'; the folds on it and the gradients of the pieces between give units
(Theorem 4.8's differences); Gaussian probes then say whether anything is left, and the next line goes through where
the residual is largest. So nothing is asked twice: a line costs what is still unknown. For well-separated networks the
first line finds every unit and this is exact extraction, about d + 8 rows a unit.

Differs from the paper: pieces are found, not enumerated; a piece's step for differences follows its length; units are
read off, so that regression (learn_polish) is needed only under noise; biases are taken at the origin, where the
paper's b_L is the intercept at the line's own origin.

epsilon is an L2 error under x ~ N(0, I), relative to the target's standard deviation (relative=False: absolute, as in
the paper, whose bound is epsilon squared on the squared error).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from foldline.errors import BadInput, BudgetExhausted, Refused
from foldline.extract.learn_certificate import LearnCertificate, certify, probes_wanted
from foldline.extract.learn_handover import extracted
from foldline.extract.learn_lines import LineReport, add_units_of_line
from foldline.extract.learn_merge import merge_within
from foldline.extract.learn_model import Array, Asker, Model, fold_into_affine
from foldline.extract.learn_noise import measure_noise
from foldline.extract.learn_pieces import line_grid
from foldline.extract.learn_polish import grow, polish
from foldline.networks.one_hidden import Network
from foldline.oracles.protocols import ValueOracle
from foldline.randomness import Streams
from foldline.results import Progress, Provenance, Result, Status, silent

if TYPE_CHECKING:
    from foldline.extract.worst_case import Theory

FIRST_LOOK = 32             # probes before the first line; they screen every later model for nothing
FIRST_GRID, NEXT_GRID = 48, 40
SMALLEST_EPSILON = 64 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Trace:
    """One line as it was seen, for a plot: values at `t`, folds at `folds`."""

    t: torch.Tensor             # (n,)
    value: torch.Tensor         # (n,)
    learnt: torch.Tensor        # (n,)
    folds: torch.Tensor         # (m,)


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnResult(Result):
    network: Network
    certificate: LearnCertificate
    units: int
    merged: tuple[tuple[int, ...], ...]         # groups of recovered units that became one fold
    dropped: int                                # units beyond the Gaussian's reach, now affine or gone
    tangles: int                                # stretches of lines narrower than the resolution, taken as one fold
    lines: int
    handed_over: bool                           # exact extraction did it
    noise: float                                # typical error of one answer
    history: tuple[tuple[int, float], ...]      # (rows asked, relative error on the probes so far)
    trace: Trace | None


def learn_from_queries(f: ValueOracle, epsilon: float = 1e-3, delta: float = 0.05, *, rng: torch.Generator,
                       method: Literal["practical", "theory"] = "practical", relative: bool = True,
                       kurtosis: float | None = None, resolution: float = 1e-7, max_lines: int = 400,
                       hand_over: bool = True, theory: Theory | None = None,
                       progress: Progress = silent) -> LearnResult:
    """Learn f within epsilon, with confidence 1 - delta.

    kurtosis: heaviest residual tails the certificate must cover (more is more probes); resolution: folds closer than
    this on a line, in units of sqrt(d), act as one; hand_over: try exact extraction first; theory: constants of the
    literal algorithm.
    """
    check_arguments(f, epsilon, delta, relative, kurtosis, resolution)
    if method == "theory":
        from foldline.extract.worst_case import Theory, learn_by_theory
        return learn_by_theory(f, epsilon, delta, rng=rng, theory=theory or Theory(), progress=progress)
    if method != "practical":
        raise BadInput(f'method is "practical" or "theory", not {method!r}.')
    streams = Streams(rng)
    parameters = {"epsilon": epsilon, "delta": delta, "relative": relative, "kurtosis": kurtosis,
                  "resolution": resolution, "max_lines": max_lines, "hand_over": hand_over}
    run = Run(f, epsilon, delta, relative, kurtosis, resolution, max_lines, hand_over, streams, progress)
    try:
        run.go()
    except BudgetExhausted:
        run.out_of_budget = True
        if run.ask.oracle.remaining or len(run.x):
            run.refit(growing=True)                                 # the rows that are left, as a sample
    return run.result(Provenance("learn_from_queries", streams.seed, parameters))


def check_arguments(f: ValueOracle, epsilon: float, delta: float, relative: bool, kurtosis: float | None,
                    resolution: float) -> None:
    if not isinstance(f, ValueOracle):
        raise BadInput(f"learn_from_queries asks values: pass fl.value_oracle(target), not {type(f).__name__}.")
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise BadInput(f"epsilon is a positive error, not {epsilon!r}.")
    if not 0 < delta < 1:
        raise BadInput(f"delta is a probability between 0 and 1, not {delta!r}.")
    if kurtosis is not None and not kurtosis >= 1:
        raise BadInput(f"No distribution has a kurtosis below 1; {kurtosis!r} was asked for.")
    if not 0 < resolution < 1:
        raise BadInput(f"resolution is a width between 0 and 1, not {resolution!r}.")
    if relative and epsilon < SMALLEST_EPSILON:
        raise BadInput(f"epsilon={epsilon:.3g} is below what float64 answers can show: relative errors under "
                       f"{SMALLEST_EPSILON:.1e} are rounding. Nothing was asked.")
    if f.box is not None:
        raise Refused(f"The target answers only in the box [{f.box[0]}, {f.box[1]}], but the error is measured under "
                      f"Gaussian inputs, which leave it. Nothing was asked.")


class Run:
    """What a run carries from stage to stage, so that a budget that ends leaves the best so far."""

    def __init__(self, f: ValueOracle, epsilon: float, delta: float, relative: bool, kurtosis: float | None,
                 resolution: float, max_lines: int, hand_over: bool, streams: Streams, progress: Progress) -> None:
        self.ask = Asker(f)
        self.hand_over, self.handed_over = hand_over, False
        self.extraction_rng = streams("extraction")
        self.epsilon, self.delta, self.relative = epsilon, delta, relative
        self.max_lines, self.progress = max_lines, progress
        self.d, self.m = self.ask.d, self.ask.m
        self.width = resolution * math.sqrt(self.d)
        self.rng = {name: np.random.default_rng(streams.integer(name))
                    for name in ("look", "lines", "steps", "probes", "mix", "noise", "polish")}
        mix = self.rng["mix"].standard_normal(self.m)
        self.mix: Array = mix / np.linalg.norm(mix) if self.m > 1 else np.ones(1)
        self.model = Model.empty(self.d, self.m)
        self.best = self.model.copy()
        self.best_error = float("inf")
        self.x: Array = np.zeros((0, self.d))                       # every Gaussian point asked so far
        self.y: Array = np.zeros((0, self.m))
        self.fresh = probes_wanted(self.d, delta, kurtosis)
        self.certificate: LearnCertificate | None = None
        self.reports: list[LineReport] = []
        self.history: list[tuple[int, float]] = []
        self.notes: list[str] = []
        self.tests = 0
        self.dropped = 0
        self.merged: tuple[tuple[int, ...], ...] = ()
        self.out_of_budget = False

    # What is known of the target's size.

    @property
    def sd(self) -> float:
        return float(np.sqrt(self.y.var(0).sum())) if len(self.y) else 0.0

    @property
    def target(self) -> float:
        """The L2 error wanted, in absolute units; never below the answers' own noise."""
        wanted = self.epsilon * self.sd if self.relative else self.epsilon
        return max(wanted, self.floor)

    @property
    def floor(self) -> float:
        """Residuals of a perfect model would still be this large."""
        return 2.0 * math.sqrt(self.m) * self.ask.eta

    def go(self) -> None:
        self.look()
        if self.hand_over and self.extraction_passes():
            return
        self.listen()
        stale = refits = 0
        for number in range(self.max_lines):
            before = self.best_error
            self.search_line(number)
            if self.best_error <= 0.5 * self.target and self.passes():
                return
            stale = stale + 1 if self.best_error > 0.9 * before else 0
            if stale >= (2 if self.noisy else 8):
                stale, refits = 0, refits + 1
                improved = self.refit()
                if self.best_error <= self.target and self.passes():
                    return
                if refits >= 6 or (refits >= 2 and not improved):
                    break
        self.refit(growing=True)
        self.passes()

    @property
    def noisy(self) -> bool:
        return self.ask.eta > 1e-9 * max(self.sd, self.ask.magnitude)

    def look(self) -> None:
        self.grow_pool(self.gaussian(FIRST_LOOK, "look"))
        self.model.q = self.y.mean(0)
        self.remember()
        self.progress("look", {"rows": self.ask.rows, "deviation": self.sd})

    def extraction_passes(self) -> bool:
        """Try exact extraction; its network must explain the points of the first look, then fresh probes."""
        model = extracted(self.ask.oracle, rng=self.extraction_rng)
        self.progress("extraction", {"rows": self.ask.rows, "units": model.h if model else 0})
        if model is None:
            return False
        kept, self.model = self.model, model
        self.remember()
        if self.best_error <= 0.5 * self.target and self.passes():
            self.handed_over = True
            return True
        self.model = kept                                           # a wrong network is no start
        return False

    def listen(self) -> None:
        """How exact the answers are, said before rows are spent on what they cannot show."""
        eta = measure_noise(self.ask, self.gaussian(4, "noise"), self.y, self.rng["noise"])
        self.ask.eta = eta = max(eta, self.ask.eta)
        self.progress("noise", {"rows": self.ask.rows, "noise": eta})
        if self.relative and self.sd > 0 and self.floor > self.epsilon * self.sd:
            self.notes.append(f"Known from the first {self.ask.rows} rows: the answers are off by about {eta:.2g}, so "
                              f"relative errors below {self.floor / self.sd:.2g} cannot be shown.")
            self.progress("floor", {"reachable": self.floor / self.sd, "epsilon": self.epsilon})

    def gaussian(self, n: int, stream: str) -> Array:
        return self.ask.points(self.rng[stream].standard_normal((n, self.d)))

    def grow_pool(self, x: Array) -> Array:
        y = self.ask(x)
        self.x, self.y = np.concatenate([self.x, x]), np.concatenate([self.y, y])
        return y

    def search_line(self, number: int) -> None:
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
        report = add_units_of_line(self.ask, self.model, x0, v, grid, mix=self.mix, resolution=self.width,
                                   rng=self.rng["steps"], loose=0.25 if self.noisy else 1e-3)
        self.reports.append(report)
        self.remember()
        self.progress("lines", {"rows": self.ask.rows, "units": self.model.h, "error": self.relative_error(),
                                "lines": number + 1})

    def relative_error(self) -> float:
        return self.best_error / self.sd if self.sd > 0 else self.best_error

    def remember(self) -> None:
        """Keep the model that does best on every Gaussian point asked so far."""
        def score(model: Model) -> float:
            return float(np.sqrt(np.square(self.y - model(self.x)).sum(1).mean()))
        error = score(self.model)
        self.best_error = score(self.best)
        if not error > self.best_error:                             # NaN never wins
            self.best, self.best_error = self.model.copy(), error
        self.history.append((self.ask.rows, self.relative_error()))

    def refit(self, growing: bool = False) -> bool:
        """Regression on Gaussian samples: weights first, then all parameters. True if it helped.

        growing: also add units that only the sample speaks for. Rows are left for a certificate.
        """
        size = self.best.h * (self.d + 1) + self.d + 1
        want = min(max(8 * size, 200 * self.d, 2000), 20_000) - len(self.x)
        remaining = self.ask.oracle.remaining
        if remaining is not None:
            want = min(want, remaining if self.out_of_budget else remaining - self.fresh)
        if want > 0:
            self.grow_pool(self.gaussian(want, "polish"))
        if growing:
            self.model = grow(self.best, self.x, self.y, floor=self.ask.eta, rng=self.rng["polish"])
        else:
            self.model = polish(self.best, self.x, self.y, floor=self.ask.eta)
        before = self.relative_error()
        self.remember()
        # What is left now is the error of the fit, spread over the units.
        self.model = self.best.copy()
        self.model.doubt(self.best_error, self.rng["polish"])
        self.progress("refit", {"rows": self.ask.rows, "units": self.model.h, "error": self.relative_error()})
        return self.relative_error() < 0.7 * before

    def passes(self) -> bool:
        """Tidy the best model and put it before probes it has not seen."""
        model = self.best.copy()
        dropped = fold_into_affine(model)
        model, merged = merge_within(model, 0.1 * self.target, self.rng["probes"])
        self.tests += 1
        confidence_left = self.delta / (self.tests * (self.tests + 1))      # the tests' failures add up to delta
        first = min(self.fresh, 64)
        fresh = self.gaussian(self.fresh, "probes")
        residual = self.grow_pool(fresh[:first]) - model(fresh[:first])
        if float(np.square(residual).sum(1).mean()) <= self.target ** 2 and self.fresh > first:
            residual = np.concatenate([residual, self.grow_pool(fresh[first:]) - model(fresh[first:])])
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
        reached = f"reached a relative error of about {self.relative_error():.2g}"
        if self.certificate.holds:
            return Status("ok", "Done.", notes)
        if self.out_of_budget:
            return Status("budget", f"The budget ended after {self.ask.rows} rows with epsilon={self.epsilon:g} not "
                          f"certified; {reached}. Allow more rows or a larger epsilon.", notes)
        if self.floor > (self.epsilon * self.sd if self.relative else self.epsilon):
            return Status("noise", f"The answers' own noise hides errors below {self.certificate.floor:.2g}; "
                          f"{reached}. Ask for a larger epsilon.", notes)
        return Status("unverified", f"{len(self.reports)} lines and a regression did not reach "
                      f"epsilon={self.epsilon:g}; {reached}. The target may not be a one-hidden-layer ReLU network.",
                      notes)

    def trace(self) -> Trace | None:
        if not self.reports:
            return None
        report = self.reports[0]
        t = np.unique(np.concatenate([report.pieces.start, report.pieces.stop, report.pieces.middle]))
        x = report.origin + t[:, None] * report.direction
        value = np.interp(t, report.pieces.middle, report.pieces.value)
        folds = report.pieces.start[1:]
        as_tensor = torch.from_numpy
        return Trace(as_tensor(t), as_tensor(value), as_tensor(self.final(x) @ self.mix), as_tensor(folds.copy()))


def describe(result: LearnResult) -> dict[str, Any]:
    """The numbers a person reads first."""
    c = result.certificate
    return {"rows": result.queries, "units": result.units, "relative error": c.relative_error, "bound": c.bound,
            "confidence": c.confidence, "tails up to kurtosis": c.kurtosis, "probes": c.probes,
            "groups merged": len(result.merged), "units out of reach": result.dropped, "lines": result.lines}
