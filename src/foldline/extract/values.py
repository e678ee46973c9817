"""A one-hidden-layer ReLU network from its values alone, near one row per parameter.

One line shows every unit as a fold (lines.py, about 5 rows each); d - 1 more directions at the pieces between the
folds give the units' rows (jumps.py). With k outputs a row of values is k equations, and about h / k + 1 pieces
suffice. What a line misses (ties, far crossings) is found in the residual f - f^, whose only folds are the missing
units: the same search on a line through a point where they disagree. Fresh probes make the certificate.

Differs from paper 000's Algorithm 1-MQ: no bisection, steps as long as the pieces allow instead of a tiny s, no
knowledge of h, biases, several outputs, dependent rows, and no extra rows for the signs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from foldline.errors import BudgetExhausted
from foldline.extract.jumps import Frame, recover_units
from foldline.extract.line_pieces import FoldLine
from foldline.extract.lines import folds_from_values
from foldline.extract.links import LENGTHS, LOOSE, NEAR, Unlinked, link_by_bending, link_of, linked
from foldline.extract.noise import NoiseFloor, floor_of_values
from foldline.extract.noisy_core import BAD
from foldline.extract.noisy_values import ThroughNoise, certified, recover_through_noise, unknown
from foldline.extract.regions import Region
from foldline.extract.result import Extraction, Line, assumptions_of, parameters
from foldline.extract.spread import Spread, bends_everywhere, spread_of_probabilities, spread_of_values
from foldline.extract.units import Units, merged, with_signs
from foldline.oracles.protocols import ValueOracle
from foldline.randomness import Streams, unit_rows
from foldline.results import FunctionCertificate, Progress, Provenance, Status, silent

FAR = 1e5
BENT = 6                    # stretches that must all bend, to call a function smooth in spite of noise
ROUNDS = 12                 # lines tried for what earlier ones missed


def extract_from_values(f: ValueOracle, *, rng: torch.Generator,
                        method: Literal["crossing", "bisection"] = "crossing", probes: int = 8,
                        max_folds: int = 5_000, hidden: int | None = None, l: float | None = None,
                        epsilon: float | None = None, step: float | None = None, delta: float = 0.05,
                        link: Literal["auto", "identity", "sigmoid", "softmax"] = "auto",
                        progress: Progress = silent) -> Extraction:
    """The network behind a value oracle.

    link: what the target ends in. "auto" looks at one answer: a row of several positive numbers that sums to one is
    taken for a softmax, numbers strictly between 0 and 1 for a sigmoid if their logits run straight where they bend.

    method="bisection" is the paper's Algorithm 1-MQ, which needs `hidden` and takes l, epsilon, step (s) and delta.
    probes: fresh points that the certificate rests on. max_folds bounds the search on targets that are no such network.
    """
    if method == "bisection":
        from foldline.extract.bisection import bisect_values
        return bisect_values(f, hidden=hidden, l=l, epsilon=epsilon, step=step, delta=delta, rng=rng,
                             progress=progress)
    if method != "crossing":
        raise ValueError(f"method is 'crossing' or 'bisection', not {method!r}.")
    streams = Streams(rng)
    start, outputs = f.used, f.source.width
    seen: Tensor | None = None
    guessed = False
    if link == "auto":
        x = Region(f.dim, f.box).points(3, rng=streams("link"))
        try:
            seen = f(f.snap(x))
            outputs, link = seen.shape[1], link_of(seen)
            if link == "sigmoid":
                # Numbers between 0 and 1 need not be probabilities: they are if their logits run straight.
                decided = link_by_bending(f, x[0], unit_rows(2 * len(LENGTHS), f.dim, rng=streams("stretches")))
                guessed, link = decided is None, decided or link
        except BudgetExhausted:
            link = "identity"
    if link == "identity":
        found = Run(f, streams, probes, max_folds, progress, start, seen=seen).result()
        few_digits = f.box is not None and found.noise is not None and not found.noise.fine and found.noise.straight
        return replace(found, status=coarse_in_a_box(found.status)) if few_digits else found
    inverse: Literal["sigmoid", "softmax"] = "softmax" if link == "softmax" else "sigmoid"
    logits = f.wrap(lambda s: Unlinked.over(s, inverse, outputs))
    assert isinstance(logits, ValueOracle)
    spread = None
    try:
        spread = spread_of_probabilities(f, inverse, Region(f.dim, f.box).points(3, rng=streams("link")), seen)
    except BudgetExhausted:
        progress("budget", {"queries": f.used - start})
    through = spread if f.box is None else None
    found = Run(logits, streams, probes, max_folds, progress, start, far=NEAR, loose=LOOSE, spread=through).result()
    if f.box is not None and spread is not None and not spread.fine:
        found = replace(found, status=coarse_in_a_box(found.status))
    note = (f"The answers look like a {inverse}: it was inverted first, and the certificate is on the "
            f"{'logits' if through is None else 'probabilities'}.")
    status = Status(found.status.code, found.status.message, (*found.status.notes, note))
    found = replace(found, status=status, network=linked(found.network, inverse))
    if guessed and not found.status.ok:
        plain = Run(f, streams, probes, max_folds, progress, start, seen=seen).result()
        found = plain if plain.status.ok else replace(found, queries=plain.queries)
    return found


def coarse_in_a_box(status: Status) -> Status:
    """Least squares through noise (noisy_values.py) needs room that a box does not give: say what is in the way."""
    if status.code not in ("not_piecewise_linear", "not_one_hidden_layer"):
        return status
    return Status("imprecise", "The answers have few digits, and in a box units are read off them by short steps "
                  "alone, which asks for more. Or the target is no network with one hidden layer: " + status.message,
                  status.notes)


class Run:
    def __init__(self, f: ValueOracle, streams: Streams, probes: int, max_folds: int, progress: Progress,
                 start: int, *, far: float = FAR, loose: float = 1.0, seen: Tensor | None = None,
                 spread: Spread | None = None) -> None:
        """spread: the noise, where it was measured before a link was inverted."""
        self.far, self.loose, self.seen, self.spread = far, loose, seen, spread
        # In a box a unit may cut off a corner that few points see: look harder.
        self.probes = probes if f.box is None else max(probes, 32)
        self.oracle, self.streams, self.progress = f, streams, progress
        self.max_folds = max_folds
        self.region = Region(f.dim, f.box)
        self.start_rows = start
        self.k, d = f.outputs, f.dim
        k = self.k
        self.units = Units.none(torch.zeros(k, d, dtype=torch.float64), torch.zeros(k, dtype=torch.float64))
        self.floor: NoiseFloor | None = None
        self.certificate = FunctionCertificate.of(torch.zeros(0), tolerance=0.0, distribution=self.region.name)
        self.lines: list[FoldLine] = []
        self.row_error = 0.0                                         # of the function's slope, for reasons of precision
        self.rounding = 0.0
        self.coarse = False
        self.unresolved = 0
        self.unexplained, self.merged = 0.0, 0
        self.noisy: ThroughNoise | None = None

    @property
    def relative_error(self) -> float:
        size = float((self.units.A.abs().amax(0) * self.units.W.norm(dim=1)).max()) if len(self.units) else 0.0
        return self.row_error / size if size > 0 else 0.0

    @property
    def used(self) -> int:
        return self.oracle.used - self.start_rows

    def ask(self, x: Tensor) -> Tensor:
        x = self.oracle.snap(self.region.clamp(x))
        y = self.oracle(x).double()
        if self.floor is not None and self.floor.kind == "arithmetic":
            # The first stretch may have been flat: what rounding does follows the largest sums seen.
            grown = (y.abs().amax(1) / (x.norm(dim=1) / self.floor.radius).clamp_min(1.0)).max()
            self.rounding = max(self.rounding, 8 * float(torch.finfo(self.oracle.dtype).eps) * float(grown))
        return y

    def noise(self, x: Tensor) -> Tensor:
        """(n,)"""
        assert self.floor is not None
        if self.floor.kind != "arithmetic":
            return torch.full((len(x),), self.floor.value, dtype=torch.float64)
        size: Tensor = (x.norm(dim=1) / self.floor.radius).clamp_min(1.0)
        return self.loose * max(self.floor.value, self.rounding) * size

    def result(self) -> Extraction:
        try:
            status = self.extract()
        except BudgetExhausted as error:
            status = Status("budget", f"{error} The network holds the {len(self.units)} units found so far.")
        signed = with_signs(self.units, tolerance=max(1e-9, 100 * self.relative_error))
        u = signed.units.normalised()
        notes = list(status.notes)
        if not signed.unique:
            notes.append(f"The {len(u)} rows are dependent, so the signs of the units are not unique: the function is "
                         "written with an affine term.")
        h, d, k = len(u), self.oracle.dim, self.k
        lines = [*self.lines, *(self.noisy.lines if self.noisy is not None else ())]
        gap = min((line.smallest_gap for line in lines), default=float("inf"))
        drawn = lines[0] if lines else None
        picture = None
        if drawn is not None:
            order = drawn.samples[0].argsort()
            picture = Line(drawn.samples[0][order], drawn.samples[1][order], drawn.t)
        return Extraction(
            status=Status(status.code, status.message, tuple(notes)), queries=self.used, certificate=self.certificate,
            network=u.network(), units=h, signs_unique=signed.unique, affine_free=signed.found,
            assumptions=assumptions_of(u, gap), noise=self.floor, limit=-(-parameters(h, d, k) // k),
            lines_used=len(lines), line=picture,
            provenance=Provenance("extract_from_values", self.streams.seed, {"probes": self.probes}))

    def extract(self) -> Status:
        d = self.oracle.dim
        rng = self.streams("line")
        if self.oracle.box is None:
            x0, u = torch.randn(2, d, generator=rng, dtype=torch.float64)
        else:
            a, b = self.region.chord(rng=rng)
            x0, u = 0.5 * (a + b), 0.5 * (b - a)
        near = unit_rows(1, d, rng=rng)[0] if self.oracle.box is None else u / u.norm()
        if self.spread is not None:
            self.floor = NoiseFloor(self.spread.level, 0.0, self.spread.radius, self.spread.kind, None, True)
            return self.through_noise(x0, u, self.spread)
        self.floor = floor_of_values(self.oracle, self.oracle.snap(x0), near, seen=self.seen)
        if not self.floor.straight:
            return Status("not_piecewise_linear", "Values on two short stretches bend at every scale: the target is "
                          "not piecewise linear (a smooth activation, or a link that must be inverted first).")
        self.progress("line", {"queries": self.used})
        if not self.floor.fine and self.oracle.box is None and self.loose == 1.0:
            return self.through_noise(x0, u, spread_of_values(self.oracle, self.floor, torch.stack([x0, u]), near,
                                                              self.streams("scatter")))
        self.search(x0, u, None)
        return self.finish()

    def through_noise(self, x0: Tensor, u: Tensor, spread: Spread) -> Status:
        rng = self.streams("probes")
        found = recover_through_noise(self.oracle, spread, x0, u, streams=self.streams, progress=self.progress,
                                      spare=lambda n: self.region.points(n, rng=rng))
        self.units, self.noisy = merged(found.units, tolerance=1e-7, drop=0.0), found
        if found.rms > BAD:
            at, v = self.region.points(BENT, rng=rng), unit_rows(BENT, self.oracle.dim, rng=rng)
            if bends_everywhere(self.oracle, spread, at, v):
                return Status("not_piecewise_linear", f"{BENT} of {BENT} short stretches bend by more than noise "
                              "explains: the target is not piecewise linear (a smooth activation, or a link that must "
                              f"be inverted first). The {len(self.units)} units returned imitate it on a line.")
        self.certificate, status = certified(found, self.units, self.oracle, self.region, spread, self.probes, rng)
        return status

    def search(self, x0: Tensor, u: Tensor, known: float | None) -> int:
        """One line: its folds in the residual, then the units behind them. known: a t where the residual is zero."""
        assert self.floor is not None
        base = self.units
        frame = Frame.of(x0, u, self.streams(f"frame {len(self.lines)}"))
        fine = self.floor.fine
        far = min(self.far, FAR if fine else 1e3)
        ends = (-far, far) if self.oracle.box is None else (-1.0, 1.0)

        def residual(x: Tensor) -> Tensor:
            return self.ask(x) - base.values(self.oracle.snap(self.region.clamp(x)))

        nx, nu = float(x0.norm()), float(u.norm())
        extra = self.row_error

        def blur(t: float) -> float:
            size = nx + abs(t) * nu
            return float(self.noise(torch.full((1, 1), size, dtype=torch.float64))) + extra * size

        line = folds_from_values(lambda t: residual(frame.at(t)), ends, noise=blur,
                                 scale=1.0 if self.oracle.box is None else None, limit=12 * self.max_folds + 64)
        self.coarse = not fine
        self.lines.append(line)
        self.unresolved += len(line.open)
        self.progress("folds", {"folds": len(line.t), "queries": self.used})
        piece = None
        if known is not None and len(line.t):
            piece = int((line.t < known).sum())
        room = None if self.oracle.box is None else self.room(frame)
        if known is not None and len(line.t) == 0:
            return 0
        found = recover_units(residual, line, frame, noise=self.noise, known=piece, room=room, coarse=not fine)
        # An error of r in every direction is an error of |kappa r| |x| / |u| in the function.
        weight = line.jump.abs().amax(1) * found.error if len(found.error) else line.t.new_zeros(1)
        self.row_error += (float(weight.norm()) + found.affine_error) / nu
        self.units = merged(base.plus(found.units), tolerance=min(1e-4, max(1e-7, 100 * self.relative_error)))
        if len(base) == 0:
            self.merged = len(line.t) - len(self.units)
        self.progress("units", {"units": len(self.units), "queries": self.used})
        return len(line.t)

    def room(self, frame: Frame) -> Callable[[Tensor], Tensor]:
        lo, hi = self.oracle.box or (0.0, 0.0)
        reach = frame.E.abs().max(1).values.max()                    # the largest coordinate of any direction

        def room(x: Tensor) -> Tensor:
            most: Tensor = torch.minimum(x - lo, hi - x).min(1).values.clamp_min(1e-12) / reach
            return most
        return room

    def tolerance(self, x: Tensor) -> Tensor:
        """(n,): how far off the recovered function may be for reasons of precision."""
        allowed: Tensor = 8 * self.noise(x) * max(1.0, len(self.units)**0.5) + 6 * self.row_error * x.norm(dim=1)
        return allowed

    def finish(self) -> Status:
        rng = self.streams("probes")
        for attempt in range(ROUNDS):
            x = self.oracle.snap(self.region.points(self.probes, rng=rng))
            y = self.ask(x)
            r = y - self.units.values(x)
            off = r.abs().max(1).values > self.tolerance(x)
            self.certificate = FunctionCertificate.of(r, tolerance=float(self.tolerance(x).max()),
                                                      distribution=self.region.name)
            self.progress("check", {"units": len(self.units), "residual": self.certificate.worst, "queries": self.used})
            if not bool(off.any()) and unknown(self.certificate.tolerance, y, float(self.noise(x).max())):
                return Status("imprecise", f"{len(self.units)} units were found, but at this precision of the answers "
                              f"(off by up to {float(self.noise(x).max()):.2g}) the function is known only to "
                              f"{self.certificate.tolerance:.2g}; probes agree within {self.certificate.worst:.2g}.")
            if not bool(off.any()):
                notes: tuple[str, ...] = ()
                if self.unresolved:
                    notes = (f"{self.unresolved} stretches of the lines could not be resolved.",)
                if self.merged:
                    notes += (f"{self.merged} folds of the first line merged with others or nearly cancel: closer "
                              f"together than these answers can tell apart (rows are known to {self.row_error:.1g}).",)
                if self.unexplained:
                    notes += (f"Probes were off by up to {self.unexplained:.2g} with no fold to explain it: units that "
                              "nearly cancel, closer together than values can tell apart, or their precision.",)
                return Status("ok", f"{len(self.units)} units; {self.probes} fresh probes agree.", notes)
            if attempt == ROUNDS - 1:
                break
            if self.coarse and self.oracle.box is None:
                # Noise in the rows looks like missing units: look once more, and keep what fits the probes better.
                before, rows_before, lines = self.units, self.row_error, len(self.lines)
                if attempt < 2 and self.certificate.off > self.probes // 4:
                    self.search(x[off][0], torch.randn(len(x[0]), generator=rng, dtype=torch.float64), None)
                    after = y - self.units.values(x)
                    if float(after.square().mean()) < 0.25 * float(r.square().mean()):
                        continue
                self.units, self.row_error = before, rows_before
                del self.lines[max(lines, 1):]
                return Status("imprecise", f"{len(self.units)} units were found; at this precision of the answers (off "
                              f"by up to {float(self.noise(x).max()):.2g}) {self.certificate.off} of {self.probes} "
                              f"probes disagree, by up to {self.certificate.worst:.2g}. More decimals are needed.")
            # A line from where they agree through a point where they do not must cross what is missing.
            worst = x[(r.abs().max(1).values * off).argmax()]
            if self.oracle.box is not None:
                a, b = self.region.chord(rng=rng)
                found = self.search(0.5 * (a + b), 0.5 * (b - a), None)
            elif bool((~off).any()):
                good = x[~off][0]
                found = self.search(good, worst - good, 0.0)
            else:
                found = self.search(worst, torch.randn(len(worst), generator=rng, dtype=torch.float64), None)
            size = float(y.abs().max())
            if found == 0 and self.certificate.worst <= 1e-5 * size:
                # No fold is left on a line through the disagreement: it is the precision of what was measured.
                self.row_error = max(2 * self.row_error, float((r.abs().amax(1) / x.norm(dim=1)).max()))
                self.unexplained = self.certificate.worst
        return Status("not_one_hidden_layer", f"{len(self.units)} units were found on {len(self.lines)} lines, but "
                      f"{self.certificate.off} of {self.certificate.probes} probes still disagree by up to "
                      f"{self.certificate.worst:.3g}: the folds do not continue as hyperplanes (a deeper network?), or "
                      "the answers are too coarse.")
