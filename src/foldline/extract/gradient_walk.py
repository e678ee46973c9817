"""The walk along a path of gradients: which gap to ask next, and the units that the answers make.

The state of an extraction from gradients lives here: every answer, the test points, the gaps of the path, and the
units so far. gradients.py runs it and certifies the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from foldline.extract.gradient_lines import Gap, Segment, gaps_between
from foldline.extract.hidden_pairs import Disagreement, blame_of, named_by
from foldline.extract.line_pieces import middle
from foldline.extract.noise import NoiseFloor
from foldline.extract.regions import Region
from foldline.extract.result import Line
from foldline.extract.suspects import suspects
from foldline.extract.units import Units
from foldline.oracles.protocols import GradientOracle
from foldline.randomness import Streams
from foldline.results import FunctionCertificate, Progress

FAR = 1e6                   # where a line ends: a unit crosses farther out with probability 1e-6
FIRST_TESTS = 2
TESTS_PER_GAP = 1 / 8
PATIENCE = 3                # test points near the path that isolate nothing, before gaps are asked themselves
FEW = 0.4                   # of the tests disagree: then
CALM = 4                    # fresh ones are asked before any gap is blamed
CLEAR = 3.0                 # standard deviations above chance that make a gap's blame evidence


@dataclass(eq=False)
class Asked:
    """Every answer so far, for tests, refinement and the certificate."""

    oracle: GradientOracle
    saw: Callable[[Tensor, Tensor, Tensor], None]
    x: list[Tensor] = field(default_factory=list)
    y: list[Tensor] = field(default_factory=list)
    g: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.oracle.snap(x)
        y, g = (t.double() for t in self.oracle(x))
        self.keep(x, y, g)
        return y, g

    def keep(self, x: Tensor, y: Tensor, g: Tensor) -> None:
        self.saw(x, y, g)
        self.x.append(x)
        self.y.append(y)
        self.g.append(g)

    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.cat(self.x), torch.cat(self.y), torch.cat(self.g)


class Walk:
    def __init__(self, g: GradientOracle, streams: Streams, probes: int, most: int, progress: Progress,
                 start: int, *, far: float = FAR, loose: float = 1.0, eps: float = 0.0) -> None:
        """eps: of the target's arithmetic, where an earlier walk saw it"""
        self.far, self.loose = far, loose
        # In a box a unit may cut off a corner that few points see, and a short path may miss a unit: look harder.
        self.probes = probes if g.box is None and far >= FAR else max(probes, 32)
        self.oracle, self.streams, self.most, self.progress = g, streams, most, progress
        self.ask = Asked(g, self.saw)
        self.eps = loose * max(eps, float(torch.finfo(g.dtype).eps))
        self.region = Region(g.dim, g.box)
        self.start_rows = start
        d = g.dim
        self.units = Units.none(torch.zeros(1, d, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
        self.floor: NoiseFloor | None = None
        self.tests: tuple[Tensor, Tensor, Tensor] | None = None
        self.certificate = FunctionCertificate.of(torch.zeros(0), tolerance=0.0, distribution=self.region.name)
        self.gaps: list[Gap] = []
        self.on_path: list[Gap] = []
        self.size, self.offset = 0.0, 0.0                            # largest gradient and intercept seen
        self.lines = 0
        self.smallest_gap = float("inf")
        self.line: Line | None = None
        self.test_rng = streams("tests")
        self.nearness, self.near_tests = 0.5, 0
        self.pinched_at = 0
        self.blamed_at = -1                                          # gaps when blame was last followed
        self.pinch_tests = torch.zeros(0, g.dim, dtype=torch.float64)

    # -- what noise allows ---------------------------------------------------------------------------------------

    @property
    def tolerance(self) -> float:
        """Of a gradient, in norm: rounding follows the largest gradient seen."""
        assert self.floor is not None
        return max(self.floor.gradient, 64 * self.eps * self.size) if self.floor.kind == "arithmetic" \
            else self.floor.gradient

    def blur(self, norm: float) -> float:
        """Of a value at distance norm from zero."""
        assert self.floor is not None
        if self.floor.kind != "arithmetic":
            return self.floor.value
        return max(self.floor.value, 16 * self.eps * (self.size * max(norm, 1.0) + self.offset))

    def segment(self, x0: Tensor, u: Tensor, scale: float | None) -> Segment:
        a, b = float(x0.norm()), float(u.norm())
        return Segment(x0, u, scale, 2 * self.tolerance, lambda t: 2 * self.blur(a + abs(t) * b))

    def saw(self, x: Tensor, y: Tensor, g: Tensor) -> None:
        self.size = max(self.size, float(g.norm(dim=1).max()))
        self.offset = max(self.offset, float((y - (g * x).sum(1)).abs().max()))

    # -- asking along the path -----------------------------------------------------------------------------------

    def walk(self) -> None:
        """Ask on the path until the test points agree, or every fold on it is confirmed."""
        self.explore(self.on_path, self.choose)
        self.on_path = self.gaps
        self.collect(segments_start=self.origin)

    def affine_at(self, x: Tensor, y: Tensor, g: Tensor) -> None:
        self.units = Units.none(g[None], (y - g @ x)[None])
        self.origin = (x, y, g)

    def path(self, x0: Tensor, u: Tensor, y0: Tensor, g0: Tensor) -> list[list[Gap]]:
        """Gaps between the first stations; the path starts at self.origin."""
        self.lines = 1
        x0 = self.oracle.snap(x0)
        if self.oracle.box is not None:
            end = self.oracle.snap(x0 + u)
            y, g = self.ask(end[None])
            on = self.segment(x0, end - x0, None)
            return [gaps_between(on, torch.tensor([0.0, 1.0]), torch.cat([y0[None], y]), torch.cat([g0[None], g]))]
        # A homogeneous function has no intercept anywhere.
        small = 8 * self.blur(float(x0.norm())) + self.tolerance * float(x0.norm())
        if abs(float(y0 - g0 @ x0)) <= small:
            ends = self.oracle.snap(torch.stack([u, -x0]))
            y, g = self.ask(ends)
            if bool(((y - (g * ends).sum(1)).abs() <= 8 * small).all()):
                first, second = self.segment(x0, ends[0] - x0, None), self.segment(ends[0], -x0 - ends[0], None)
                ts = torch.tensor([0.0, 1.0])
                return [gaps_between(first, ts, torch.stack([y0, y[0]]), torch.stack([g0, g[0]])),
                        gaps_between(second, ts, y, g)]
        # Low precision cannot look far: the intercepts of the last pieces drown.
        assert self.floor is not None
        far = min(self.far, max(1e2, 1e-7 * max(self.size * float(x0.norm()), 1e-300) / max(self.floor.value, 1e-300)))
        ends = self.oracle.snap(torch.stack([x0 - far * u, x0 + far * u]))
        y, g = self.ask(ends)
        on = self.segment(x0, u, 1.0)
        self.origin = (ends[0], y[0], g[0])
        return [gaps_between(on, torch.tensor([-far, 0.0, far]), torch.stack([y[0], y0, y[1]]),
                             torch.stack([g[0], g0, g[1]]))]

    def more_tests(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        x = self.oracle.snap(self.region.points(n, rng=self.test_rng))
        y, g = self.ask(x)
        if self.tests is None:
            return x, y, g
        return joined(self.tests, (x, y, g))

    def explore(self, gaps: list[Gap], select: object, base: Units | None = None) -> None:
        """Rounds of one row for each gap that `select` picks; answers are taken relative to `base`."""
        assert callable(select)
        self.gaps = gaps
        while True:
            chosen: list[Gap] = [b for b in select(self.gaps) if not b.spent]
            used = self.oracle.used - self.start_rows
            if not chosen or used + len(chosen) > self.most:
                return
            points = [b.next_point() for b in chosen]
            x = self.oracle.snap(torch.stack([b.on.x(t) for b, t in zip(chosen, points, strict=True)]))
            y, g = self.ask(x)
            if base is not None:
                yb, gb = base.gradients(x)
                y, g = y - yb, g - gb
            answer = {id(b): (t, yt, gt) for b, t, yt, gt in zip(chosen, points, y.tolist(), g, strict=True)}
            self.gaps = [n for b in self.gaps for n in (b.receive(*answer[id(b)]) if id(b) in answer else [b])]
            self.progress("path", {"folds": len(self.gaps), "queries": self.oracle.used - self.start_rows})

    # -- which gap to ask ----------------------------------------------------------------------------------------

    def choose(self, gaps: list[Gap]) -> list[Gap]:
        """The gaps that the test points blame."""
        sure = [b for b in gaps if not b.single and not b.spent]
        maybe = [b for b in gaps if b.single and not b.confirmed and not b.spent]
        if len(gaps) <= 4:
            return sure + maybe
        assert self.tests is not None
        wanted = FIRST_TESTS + int(len(gaps) * TESTS_PER_GAP)
        if wanted > len(self.tests[0]) and maybe:
            self.tests = self.more_tests(wanted - len(self.tests[0]))
        young = fruitless = calm = 0
        while True:
            assert self.tests is not None
            x, y, g = self.tests
            candidate = self.as_units(gaps, self.origin)
            R, bad = self.disagreement(candidate, x, y, g, values=False)
            if not bool(bad.any()) or not maybe:
                return sure
            r = y - candidate.values(x)[:, 0]
            hidden = suspects(gaps, candidate, x[bad], R[bad], r[bad], x, R, young)
            if hidden:
                for b, t in hidden:
                    b.hint = t
                return sure + [b for b, _ in hidden if b not in sure]
            if sure:
                return sure
            named, more = self.named(gaps, maybe, candidate, x[bad], R[bad])
            if named:
                return named
            if more:
                self.tests = self.more_tests(math.ceil(more / float(bad.double().mean())))
                continue
            if calm < CALM and (float(bad.double().mean()) <= FEW or len(gaps) == self.blamed_at):
                # Half of all points lie between a hidden fold and the one that it is taken for. Where few are hidden, a
                # fresh point likely shows one alone, and blame is chance; so it was where it led to nothing.
                calm += 1
                x, y, g = self.tests = self.more_tests(1)
                young = int(self.disagreement(candidate, x[-1:], y[-1:], g[-1:], values=False)[1].sum())
                continue
            chosen = self.blamed(gaps, maybe, candidate.W, R[bad])
            if chosen:
                self.blamed_at = len(gaps)
                return chosen
            if self.near_tests >= 3 * len(gaps) or self.oracle.used - self.start_rows >= self.most:
                return maybe
            if len(gaps) < 64 and fruitless >= PATIENCE + len(gaps) // 16:
                # Nothing isolated: look into a few gaps that were asked least, those blamed most first.
                least = min(b.tries for b in maybe)
                ranked = self.blamed(gaps, [b for b in maybe if b.tries == least], candidate.W, R[bad], cut=0.0)
                return ranked[:max(1, min(4, len(maybe) // 8))]
            fruitless += 1
            # A test close to the path disagrees about few gaps; one that disagrees about a single fold shows it whole.
            fresh = self.test_near(gaps)
            self.tests = joined(self.tests, fresh)
            _, off = self.disagreement(candidate, *fresh, values=False)
            young = int(off.sum())
            self.nearness = min(1.0, self.nearness * (1.5 - 0.8 * float(off.double().mean())))

    def named(self, gaps: list[Gap], maybe: list[Gap], u: Units, x: Tensor, R: Tensor) -> tuple[list[Gap], int]:
        """(those of `maybe` that tests x (n, d), which disagree by R, name; how many more such tests could do so)"""
        found = Disagreement.of(R, self.tolerance * max(1.0, len(gaps)**0.5 / 4))
        which, more = named_by(found, u.W, u.z(x) > 0)
        return [b for b, hides in zip(gaps, which.tolist(), strict=True) if hides and b in maybe], more

    def test_near(self, gaps: list[Gap]) -> tuple[Tensor, Tensor, Tensor]:
        n = max(1, len(gaps) // 64)
        picked = [gaps[i] for i in torch.randint(len(gaps), (n,), generator=self.test_rng).tolist()]
        on_path = torch.stack([b.on.x(middle(b.left.t2, b.right.t1, b.on.scale)) for b in picked])
        far = self.region.points(n, rng=self.test_rng)
        x = self.oracle.snap(on_path + self.nearness * (far - on_path))
        self.near_tests += n
        y, g = self.ask(x)
        return x, y, g

    def blamed(self, gaps: list[Gap], maybe: list[Gap], V: Tensor, R: Tensor, cut: float = 0.3) -> list[Gap]:
        """Those of `maybe` whose rows explain R at least `cut` times as well as the best, best first."""
        blame = blame_of(V, R)
        where = {id(b): i for i, b in enumerate(gaps)}
        scored = [(float(blame[where[id(b)]]), b) for b in maybe]
        scored.sort(key=lambda pair: -pair[0])
        n = R.shape[0]
        clear = max(cut * scored[0][0], n + CLEAR * (2 * n)**0.5) if cut > 0 else 0.0
        return [b for s, b in scored if s >= clear]

    def as_units(self, gaps: list[Gap], origin: tuple[Tensor, Tensor, Tensor]) -> Units:
        """Every gap as one unit, active towards the end of the path; affine as at its start."""
        x0, y0, g0 = origin
        P, q = g0[None], (y0 - g0 @ x0)[None]
        if not gaps:
            return Units.none(P, q)
        V = torch.stack([b.right.gradient - b.left.gradient for b in gaps])              # (m, d)
        # The jump vanishes at t*; anchoring it there keeps far ends out of the intercept.
        sign = torch.tensor([1.0 if b.right.slope >= b.left.slope else -1.0 for b in gaps], dtype=torch.float64)
        beta = torch.empty(len(gaps), dtype=torch.float64)
        for on in {id(b.on): b.on for b in gaps}.values():
            mine = torch.tensor([i for i, b in enumerate(gaps) if b.on is on])
            t = torch.tensor([b.crossing()[0] for b in gaps if b.on is on], dtype=torch.float64)
            beta[mine] = -(V[mine] @ on.x0 + t * (V[mine] @ on.u))
        for i in (~(beta.abs() < 1e12)).nonzero().flatten().tolist():    # parallel pieces never cross
            b = gaps[i]
            beta[i] = (b.right.y1 - b.right.gradient @ b.on.x(b.right.t1)) \
                - (b.left.y2 - b.left.gradient @ b.on.x(b.left.t2))
        return Units(V * sign[:, None], beta * sign, sign[None], P, q)

    def disagreement(self, u: Units, x: Tensor, y: Tensor, g: Tensor, values: bool = True) -> tuple[Tensor, Tensor]:
        """(R (n, d), bad (n,)): gradients that the units do not explain. Values count only once the intercepts,
        which a far end of the path spoils, are refined."""
        yu, gu = u.gradients(x)
        R = g - gu
        tol = 4 * self.tolerance * max(1.0, len(u)**0.5 / 4)
        loose = torch.tensor([16 * self.blur(float(n)) for n in x.norm(dim=1)]) * max(1.0, len(u)**0.5) \
            + tol * x.norm(dim=1)
        bad = R.norm(dim=1) > tol
        return R, bad | ((y - yu).abs() > loose) if values else bad

    # -- from folds to units -------------------------------------------------------------------------------------

    def collect(self, *, segments_start: tuple[Tensor, Tensor, Tensor]) -> None:
        u = self.as_units(self.gaps, segments_start)
        # Equal gradients with different values hide a pair that cancels: that is left to the residual.
        self.units = u.keep(u.W.norm(dim=1) > self.tolerance)
        t = [b.crossing()[0] for b in self.gaps]
        by_segment: dict[int, list[float]] = {}
        for b, s in zip(self.gaps, t, strict=True):
            by_segment.setdefault(id(b.on), []).append(s)
        for ts in by_segment.values():
            ordered = sorted(ts)
            self.smallest_gap = min([self.smallest_gap, *(q - p for p, q in pairwise(ordered))])
        self.refine()
        self.draw()

    def draw(self) -> None:
        """The first segment, as it was asked: what a plot of one line shows."""
        if not self.gaps:
            return
        on = self.gaps[0].on
        mine = [b for b in self.gaps if b.on is on]
        seen = {t: y for b in mine for p in (b.left, b.right) for t, y in ((p.t1, p.y1), (p.t2, p.y2))}
        t = sorted(seen)
        folds = sorted(b.crossing()[0] for b in mine if b.single)
        self.line = Line(torch.tensor(t, dtype=torch.float64),
                         torch.tensor([[seen[s]] for s in t], dtype=torch.float64),
                         torch.tensor(folds, dtype=torch.float64))

    def refine(self) -> None:
        """Intercepts by least squares over all answers, each weighted by its own precision."""
        x, y, g = self.ask.all()
        u = self.units
        weight = 1.0 / x.norm(dim=1).clamp_min(1.0)
        active = (u.z(x) > 0).double() * u.A[0]                      # (n, m)
        design = torch.cat([active, torch.ones(len(x), 1, dtype=x.dtype)], 1) * weight[:, None]
        left = (y - u.values(x)[:, 0]) * weight
        R, _ = self.disagreement(u, x, y, g, values=False)
        off = (R.norm(dim=1) > 4 * self.tolerance * max(1.0, len(u)**0.5 / 4)) \
            | (left.abs() > 1e-6 * float((y.abs() * weight).max()))   # answers that the units do not explain yet
        design, left = design[~off], left[~off]
        if len(left) == 0:
            return
        gram = design.T @ design
        gram.diagonal().add_(1e-12 * gram.diagonal().max())
        step = torch.linalg.solve(gram, design.T @ left)             # (m + 1,)
        if bool(step.isfinite().all()):
            better = Units(u.W, u.b + step[:-1], u.A, u.P, u.q + step[-1])
            after = (y - better.values(x)[:, 0]) * weight
            if float(after[~off].square().sum()) <= float(left.square().sum()):
                self.units = better


def joined(first: tuple[Tensor, Tensor, Tensor], more: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return torch.cat([first[0], more[0]]), torch.cat([first[1], more[1]]), torch.cat([first[2], more[2]])
