"""A one-hidden-layer ReLU network from its values and input gradients, in about 2 rows per hidden unit.

Along a path that crosses every hyperplane once, each answer is a whole linear piece, and two neighbouring pieces
differ by one unit: g2 - g1 = a_i w_i, c2 - c1 = a_i b_i (c = y - g.x). h units make h + 1 pieces, so h + 1 rows are
the least that any method on a path can use. The rows that a search wastes are those that confirm what it has:
here no fold is confirmed by itself. A few test points off the path carry d + 1 numbers each about all units at once.
As long as their gradients disagree with the units found, the disagreement R, written in the units' own rows
(least squares), is large exactly at the gaps that hide several folds: those are asked next. When all test points
agree, every fold is single. Fresh points then make the certificate.

The path: without biases the function is homogeneous and x0 -> u -> -x0 crosses every hyperplane exactly once; with
biases a line out to +-1e6; in a box a chord, and what it misses is found on segments towards the test points that
still disagree. Differs from paper 000: no bisection, no knowledge of h or epsilon, biases, an affine term, dependent
rows, and no extra rows for the signs (units.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from foldline.errors import BudgetExhausted
from foldline.extract.gradient_lines import gaps_between, unconfirmed
from foldline.extract.gradient_walk import FIRST_TESTS, Walk, joined
from foldline.extract.links import LOOSE, NEAR, SATURATED, Unlinked, linked
from foldline.extract.noise import floor_of_gradients
from foldline.extract.pinch import BESIDE, pinch_points
from foldline.extract.result import Extraction, assumptions_of
from foldline.extract.units import merged, with_signs
from foldline.oracles.protocols import GradientOracle
from foldline.randomness import Streams, unit_rows
from foldline.results import FunctionCertificate, Progress, Provenance, Status, silent


def extract_from_gradients(g: GradientOracle, *, rng: torch.Generator,
                           method: Literal["crossing", "bisection"] = "crossing", probes: int = 3,
                           max_queries: int | None = None, hidden: int | None = None, l: float | None = None,
                           epsilon: float | None = None, delta: float = 0.05,
                           link: Literal["auto", "identity", "sigmoid"] = "auto",
                           progress: Progress = silent) -> Extraction:
    """The network behind a gradient oracle.

    link="sigmoid": the oracle answers p and its gradient; both are turned into the logit's. "auto" does so if the
    gradient bends and every answer lies strictly between 0 and 1. A logistic regression is then known after one row;
    the others only make the certificate.

    method="bisection" is the paper's Algorithm 1, which needs `hidden` and takes l, epsilon and delta; see
    bisection.py. probes: fresh points that the certificate rests on. max_queries bounds the work on targets that are
    not one-hidden-layer networks (default: as many as the search needs, at most 20,000).
    """
    if method == "bisection":
        from foldline.extract.bisection import bisect_gradients
        return bisect_gradients(g, hidden=hidden, l=l, epsilon=epsilon, delta=delta, rng=rng, progress=progress)
    if method != "crossing":
        raise ValueError(f"method is 'crossing' or 'bisection', not {method!r}.")
    streams, start = Streams(rng), g.used
    found = run = None
    if link != "sigmoid":
        run = Run(g, streams, probes, max_queries or 20_000, progress, start)
        found = run.result()
        y = run.ask.all()[1] if run.ask.y else torch.zeros(1)
        sure = found.status.code not in ("not_piecewise_linear", "not_one_hidden_layer")
        if link == "identity" or sure or not bool(((y > 0) & (y < 1)).all()):
            return found
    eps = max(run.eps if run is not None else 0.0, float(torch.finfo(g.dtype).eps))
    logits = g.wrap(lambda s: Unlinked.over(s, "sigmoid"))
    assert isinstance(logits, GradientOracle)
    inverted = Run(logits, streams, probes, max_queries or 20_000, progress, start, far=NEAR,
                   loose=LOOSE if eps < COARSE else SATURATED, eps=eps).result()
    if found is not None and not inverted.status.ok:
        advice = ("Behind a softmax the gradient of one output does not separate the classes: take values "
                  "(extract_from_values), or, without hidden units, one gradient of each output (recover_affine).")
        return replace(found, queries=inverted.queries, status=Status(found.status.code, found.status.message,
                                                                      (*found.status.notes, advice)))
    note = "The answers look like a sigmoid: it was inverted first, and the certificate is on the logits."
    if inverted.status.ok and inverted.units == 0:
        note += (f" A logistic regression is known after one row; the other {inverted.queries - 1} chose the link and "
                 "made the certificate.")
    status = Status(inverted.status.code, inverted.status.message, (*inverted.status.notes, note))
    return replace(inverted, status=status, network=linked(inverted.network, "sigmoid"))


COARSE = 1e-10              # eps of a target whose curvature short steps do not show
STRETCHES = (1e-3, 1e-2, 5e-2, 0.2)                          # relative to |x|


class Run(Walk):
    def result(self) -> Extraction:
        try:
            status = self.extract()
        except BudgetExhausted as error:
            status = Status("budget", f"{error} The network holds the {len(self.units)} units found so far.")
        signed = with_signs(self.units, tolerance=1e-9)
        u = signed.units.normalised()
        notes = list(status.notes)
        if not signed.unique:
            notes.append(f"The {len(u)} rows are dependent, so the signs of the units are not unique: the function is "
                         "written with an affine term.")
        d, h = self.oracle.dim, len(u)
        return Extraction(
            status=Status(status.code, status.message, tuple(notes)), queries=self.oracle.used - self.start_rows,
            certificate=self.certificate, network=u.network(), units=h, signs_unique=signed.unique,
            affine_free=signed.found, assumptions=assumptions_of(u, self.smallest_gap), noise=self.floor,
            limit=-(-(h * (d + 2) + 1) // (d + 1)), lines_used=self.lines, line=self.line,
            provenance=Provenance("extract_from_gradients", self.streams.seed, {"probes": self.probes}))

    def extract(self) -> Status:
        d, box = self.oracle.dim, self.oracle.box
        rng = self.streams("path")
        if box is None:
            x0, u = torch.randn(2, d, generator=rng, dtype=torch.float64)
        else:
            a, b = self.region.chord(rng=rng)
            x0, u = a, b - a
        near = unit_rows(1, d, rng=rng)[0] if box is None else u / u.norm()
        self.floor, eps, x, y, g = floor_of_gradients(self.oracle, self.oracle.snap(x0), near,
                                                      eps=self.eps / self.loose)
        self.eps = self.loose * eps
        self.ask.keep(x, y, g)
        if not self.floor.straight:
            self.affine_at(x[0], y[0], g[0])
            return Status("not_piecewise_linear", "The gradient changes between points 1e-6 apart: the target is not "
                          "piecewise linear (a smooth activation, or a link that must be inverted first). What is "
                          "returned is its linearisation at one point.")
        self.affine_at(x[0], y[0], g[0])
        between = bool(((y > 0) & (y < 1)).all())
        if self.eps > COARSE and self.loose == 1.0 and between and self.linked(x0, near, y[0], g[0]):
            return Status("not_piecewise_linear", "The gradient bends as that of a sigmoid does, which must be "
                          "inverted first. What is returned is its linearisation at one point.")
        segments = self.path(x0, u, y[0], g[0])
        self.tests = self.more_tests(FIRST_TESTS)
        self.on_path = [gap for s in segments for gap in s]
        self.walk()
        return self.finish()

    def linked(self, x0: Tensor, v: Tensor, p: Tensor, g: Tensor) -> bool:
        """Whether the logit's gradient keeps where that of p, at x0 and farther along v, changes: of short steps only
        float64 shows it."""
        steps = max(float(x0.norm()), 1.0) * torch.tensor(STRETCHES, dtype=torch.float64)
        at = self.oracle.snap(x0 + torch.cat([steps, -steps])[:, None] * v)
        q, gq = self.ask(at if self.oracle.box is None else self.region.clamp(at))
        plain = (gq - g).norm(dim=1) / g.norm().clamp_min(1e-300)
        logit = g / (p * (1 - p))
        inverted = (gq / (q * (1 - q))[:, None] - logit).norm(dim=1) / logit.norm().clamp_min(1e-300)
        inside = (q > 0) & (q < 1)
        bends = inside & (plain > 8 * (inverted + 64 * self.eps))
        return bool(bends.any()) and not bool((inside & (inverted > 8 * (plain + 64 * self.eps))).any())

    def finish(self) -> Status:
        """Fresh probes; while they disagree, look for the missing units on segments towards them."""
        assert self.tests is not None and self.floor is not None
        path_folds = len(self.units)
        before = float("inf")
        walked = False                                               # the path has nothing more to say
        stalled = 0
        while True:
            x, y, g = self.tests
            _, bad = self.disagreement(self.units, x, y, g)
            if walked and len(self.pinch_tests):
                # Two hyperplanes closer than the path can tell apart: all else agrees, and the note says so.
                bad &= ~(x[:, None] == self.pinch_tests[None]).all(2).any(1)
            if not bool(bad.any()) and not self.pinched():
                walked = False
                continue
            if not bool(bad.any()):
                fresh = len(self.tests[0])
                self.tests = self.more_tests(self.probes)
                x, y, g = (t[fresh:] for t in self.tests)
                _, bad = self.disagreement(self.units, x, y, g)
                if not bool(bad.any()):
                    return self.certify(x, y)
                x, y, g = self.tests
                _, bad = self.disagreement(self.units, x, y, g)
                walked = False
            if not walked:
                rows = self.oracle.used
                self.walk()
                path_folds = len(self.units)
                walked = self.oracle.used == rows
                continue
            share = float(bad.double().mean())
            stalled = stalled + 1 if share >= before else 0
            before = min(share, before)
            if stalled >= 8 or self.oracle.used - self.start_rows >= self.most:
                break
            self.search_residual(x[bad][0], x, bad)
        x, y, g = self.tests
        self.certify(x, y)
        return Status("not_one_hidden_layer", f"{path_folds} folds were found on the first path and {len(self.units)} "
                      f"in all, but {self.certificate.off} of {self.certificate.probes} probes still disagree: the "
                      "folds do not continue as hyperplanes (a deeper network?), or the answers are too coarse.")

    def pinched(self) -> bool:
        """Whether every fold is single, by points beside all of them; those that contradict become test points."""
        assert self.tests is not None and self.floor is not None
        if self.oracle.box is not None or len(self.units) == 0 or len(self.units) == self.pinched_at:
            return True
        coarse = 16 * self.tolerance / max(self.size, 1e-300)
        x, _ = pinch_points(self.units, self.region.points(1, rng=self.test_rng)[0], beside=max(BESIDE, coarse))
        self.pinched_at = len(self.units)
        if len(x) == 0 or len(x) > 2 * len(self.units):
            return True
        x = self.oracle.snap(x)
        y, g = self.ask(x)
        _, bad = self.disagreement(self.units, x, y, g, values=False)
        if not bool(bad.any()):
            return True
        self.tests = joined(self.tests, (x[bad], y[bad], g[bad]))
        self.pinch_tests = torch.cat([x[bad], self.pinch_tests])
        R, _ = self.disagreement(self.units, x, y, g, values=False)
        jumps = torch.stack([b.right.gradient - b.left.gradient for b in self.on_path])
        for row in R[bad]:
            # Weights of opposite sign switch together: the whole jump is wrong, and names its gap.
            miss = torch.minimum((jumps - row).norm(dim=1), (jumps + row).norm(dim=1))
            if float(miss.min()) <= 1e-6 * float(row.norm()):
                doubted = self.on_path[int(miss.argmin())]
                doubted.finer, doubted.sides = 1e-5, (False, False)
        return False

    def search_residual(self, target: Tensor, x: Tensor, bad: Tensor) -> None:
        good, gy, gg = self.ask.all()
        _, off = self.disagreement(self.units, good, gy, gg)
        near = good[~off]
        if len(near) == 0:
            near, gy, gg = good[:1], gy[:1], gg[:1]
        inside = near[near.norm(dim=1) < 1e3 * (1 + float(target.norm()))]
        near = inside if len(inside) else near
        start = near[(near - target).norm(dim=1).argmax()] if self.oracle.box is not None \
            else near[(near - target).norm(dim=1).argmin()]
        on = self.segment(start, target - start, None)
        ends = torch.stack([start, target])
        known_x, known_y, known_g = self.ask.all()
        rows = [int((known_x - e).abs().sum(1).argmin()) for e in ends]
        y, g = known_y[rows], known_g[rows]
        yb, gb = self.units.gradients(ends)
        base = self.units
        self.lines += 1
        gaps = gaps_between(on, torch.tensor([0.0, 1.0]), y - yb, g - gb)
        self.explore(gaps, unconfirmed, base)
        zero = (start, torch.zeros((), dtype=y.dtype), torch.zeros_like(start))
        found = self.as_units([b for b in self.gaps if b.single], zero)
        blurred = 64 * self.tolerance / max(self.size, 1e-300)
        self.units = merged(base.plus(found), tolerance=max(1e-9, blurred), drop=blurred)
        self.refine()
        self.progress("residual", {"units": len(self.units), "queries": self.oracle.used - self.start_rows})

    def certify(self, x: Tensor, y: Tensor) -> Status:
        r = y - self.units.values(x)[:, 0]
        tol = float(max(16 * self.blur(float(n)) for n in x.norm(dim=1))) * max(1.0, len(self.units)**0.5) \
            + 4 * self.tolerance * max(1.0, len(self.units)**0.5 / 4) * float(x.norm(dim=1).max())
        self.certificate = FunctionCertificate.of(r, tolerance=tol, distribution=self.region.name)
        self.progress("check", {"units": len(self.units), "residual": self.certificate.worst})
        notes: tuple[str, ...] = ()
        if len(self.pinch_tests):
            px = self.pinch_tests
            known, ky, kg = self.ask.all()
            rows = torch.tensor([int((known - p).abs().sum(1).argmin()) for p in px])
            if bool(self.disagreement(self.units, px, ky[rows], kg[rows], values=False)[1].any()):
                notes = ("One of the folds is really two, closer than the path could tell apart.",)
        return Status("ok", f"{len(self.units)} units; {len(x)} fresh probes agree in value and gradient.", notes)
