"""What a search for the span has seen: every row, which of them count, and the rank they show."""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.span.rank import CLIFF, TAIL, RankDecision, decide_rank, singular

BEST = 10               # one row in so many is better than what rough rows are scaled to
FAINT = 2.5             # singular values below this many units of noise may be noise
ALIKE, VAGUE = 16.0, 0.02       # rough rows this near to each other, over their noise and in all, are repeats
ALONE = 0.9             # share of a direction that one point's rows may have before it is their error


class Seen:
    """All rows so far, which of them are informative, and an orthonormal basis grown by Gram-Schmidt."""

    def __init__(self, d: int, eps: float, min_gap: float) -> None:
        self.d, self.eps, self.min_gap = d, eps, min_gap
        self.rows: list[Tensor] = []
        self.values: list[float] = []
        self.points: list[Tensor] = []
        self.outputs: list[int] = []
        self.ranks: list[int] = []
        self.useful: list[int] = []                             # rows that are neither zero nor repeats
        self.Q = torch.zeros(0, d, dtype=torch.float64)         # (r, d)
        self.U = torch.zeros(0, d, dtype=torch.float64)         # the useful rows, unit length
        self.noises: list[float] = []                           # relative error of each useful row
        self.claimed: list[tuple[float, float]] = []            # what it is at least and at most, as the row came
        self.group = -1
        self.grouped: Tensor | None = None                      # the point that the last group belongs to
        self.groups: list[int] = []                             # which point each useful row belongs to
        self.outliers = 0                                       # rows left out as errors at the last decision
        self.left_out: set[int] = set()                         # the points they belong to
        self.trusted: set[int] = set()                          # points that were asked again, and stood
        self.errors: set[int] = set()                           # points that were asked again, and did not
        self.width = 0                                          # directions that were shown well at the last question
        self.widths: list[int] = []                             # the same, when each useful row was asked
        self.measured = 0.0                                     # from repeats or rounded answers
        self.rough = False                                      # rows differ in noise, and each one's is measured

    def add(self, x: Tensor, row: Tensor, value: float, output: int, noise: float,
            least: float | None = None) -> tuple[float, bool, bool]:
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
        # Rough rows are less certain within the span than outside, where noise is measured; vague ones all look alike.
        alike = min(ALIKE * noise, VAGUE) if self.rough else 4 * noise
        if len(self.U) and float((self.U - u).norm(dim=1).min()) <= alike:
            return 0.0, False, True
        self.useful.append(len(self.rows) - 1)
        if x is not self.grouped:
            self.grouped, self.group = x, self.group + 1
        self.groups.append(self.group)
        self.U = torch.cat([self.U, u[None]])
        self.noises.append(noise)
        self.claimed.append((noise if least is None else min(least, noise), noise))
        self.widths.append(self.width)
        v = u - self.Q.T @ (self.Q @ u)
        v = v - self.Q.T @ (self.Q @ v)
        novelty = float(v.norm())
        if novelty > 64 * noise and len(self.Q) < self.d:
            self.Q = torch.cat([self.Q, v[None] / novelty])
        return novelty, False, False

    @property
    def typical(self) -> float:
        """The noise that rows are scaled to; where each one's is measured, that of the better ones."""
        return sorted(self.noises)[len(self.noises) // (BEST if self.rough else 2)] if self.noises else 4 * self.eps

    def good(self, rank: int) -> int:
        """Points that were asked when at least `rank` directions were shown well: they had the longest steps."""
        return len({g for g, w in zip(self.groups, self.widths, strict=True) if w >= rank})

    @property
    def floor(self) -> float:
        """Largest singular value that noise alone gives to len(U) weighted rows."""
        return float(2 * max(self.typical, self.measured) * (1 + (len(self.U) / self.d) ** 0.5))

    def shown_well(self, factor: float) -> tuple[Tensor, Tensor]:
        """Directions (r, d) that stand above the noise, and how much of each is noise (r,); Q: those by `factor`."""
        self.tighten()
        _, s, V = singular(self.U * self.weights()[:, None])
        r = int((s > factor * self.typical).sum())
        self.Q, self.width = V[:r], r
        r = int((s > FAINT * self.typical).sum())
        return V[:r], self.typical / s[:r]

    def tighten(self) -> None:
        """A row's error outside the span is at most what of the row lies outside: less than was claimed, often.

        What a row has shaped itself it fits too well: its rest is divided by the share of it that the others hold.
        """
        if len(self.U) < 2:
            return
        L, s, V = singular(self.U * self.weights()[:, None])
        r = int((s > self.floor).sum())
        rest = (self.U - (self.U @ V[:r].T) @ V[:r]).norm(dim=1)                    # (m,)
        others = (1 - L[:, :r].square().sum(1)).clamp_min(1e-3)                     # (m,)
        self.noises = [min(max(float(e), low), high)
                       for e, (low, high) in zip(rest / others, self.claimed, strict=True)]

    def weights(self) -> Tensor:
        """Rows noisier than most are scaled down until their noise is like the others': scale does not move a span."""
        return torch.tensor([min(1.0, self.typical / n) for n in self.noises], dtype=torch.float64)

    def decide(self, min_tail: int = TAIL) -> tuple[RankDecision, Tensor, Tensor]:
        """In noise, a direction that one row alone shows while a dozen others show nothing is that row's error (a fold
        between the points of a difference): such a row is left out.
        """
        weights = self.weights()
        group = torch.tensor(self.groups, dtype=torch.int64)
        for point in self.errors:
            weights[group == point] = 0.0
        self.outliers, self.left_out = int((weights == 0).sum()), set()
        while True:
            L, s, V = singular(self.U * weights[:, None])
            D = decide_rank(s, floor=self.floor, min_tail=min_tail, min_gap=self.min_gap)
            if self.rough or D.rank == 0 or D.tail < TAIL or D.gap >= CLIFF or self.outliers >= len(weights) // 10:
                return D, s, V
            culprit = self.culprit(L[:, :D.rank - 1], L[:, D.rank - 1], group)
            if culprit is None or culprit in self.trusted:
                return D, s, V
            weights[group == culprit] = 0.0
            self.left_out.add(culprit)
            self.outliers += int((group == culprit).sum())

    @staticmethod
    def culprit(L: Tensor, u: Tensor, group: Tensor) -> int | None:
        """The one point whose error the direction with left vector u (m,) is, if it is one.

        An error of the rows of one point alone has a left vector in the span of those rows' columns of I - L L^T,
        L (m, r) being the left vectors of what is certain. Several outputs share the error of their point.
        """
        points = group.unique()
        if len(points) < TAIL:
            return None
        free = torch.eye(len(u), dtype=torch.float64) - L @ L.T                     # (m, m)
        for point in points[u.square()[None].mul(group[None] == points[:, None]).sum(1).argsort(descending=True)][:3]:
            columns = free[:, group == point]                                       # (m, k)
            if float(columns.norm(dim=0).max()) > 0.3:
                inside = torch.linalg.qr(columns)[0].T @ u
                if float(inside.square().sum()) >= ALONE:
                    return int(point)
        return None
