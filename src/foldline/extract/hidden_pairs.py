"""Gaps that hide several folds, named by many test points at once.

Where a gap D = v + v' is taken for one fold, the disagreement at a test point x_i is c_i v + c'_i v', summed over such
gaps: R = C V, one column of C and one row of V for every hidden fold. c_i is 1 if the fold is active at x_i but its gap
is not, -1 if the gap is and the fold is not, else 0. Once there are more test points than hidden folds, R has the rank
r of C, and its two singular spaces are those of V and of C. Both name gaps, and leave little to chance:

- `spanned`: v and v' both show in R, so that D = v + v' lies in the span of R's rows. The jump of another gap does not.
- `switched`: a weak v' beside a strong v shows alone, since D and v switch together; nothing in D tells of v'. But its
  column lies in the span of R's columns and has one sign where D is active and the other where it is not. A random
  subspace of r of n dimensions meets such an orthant with the chance that n - 1 coins show n - r heads (Wendel), so
  that about 2 r + 3 sqrt(2 r) test points that disagree make it evidence; those that agree say nothing.

No row is asked here. Without this a weak unit beside a strong one was found only by asking every gap: a network
784-512 took 356 rows for 12 of its last 24 units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from scipy.special import bdtrc
from torch import Tensor

WEAK = 1e-10                # singular values below this, relative to the largest, are rounding
INSIDE = 1e-4               # of a vector's length may stick out of a span
FALSE = 0.25                # gaps named by chance, against those that hide something
TRIED = 3                   # orthants tried, against hidden folds


@dataclass(frozen=True, eq=False)
class Disagreement:
    """R (n, d) = columns (n, r) times something times rows (r, d), both orthonormal"""

    columns: Tensor
    rows: Tensor

    @classmethod
    def of(cls, R: Tensor, tolerance: float) -> Disagreement:
        """tolerance: of a row of R, in norm"""
        left, s, right = torch.linalg.svd(R, full_matrices=False)
        kept = s > max(tolerance * len(R)**0.5, WEAK * float(s[0]))
        return cls(left[:, kept], right[kept])

    @property
    def rank(self) -> int:
        return len(self.rows)

    @property
    def saturated(self) -> bool:
        """More test points than hidden folds: the spans are known."""
        return self.rank < len(self.columns)


def spanned(found: Disagreement, V: Tensor) -> Tensor:
    """(m,) bool: which jumps V (m, d) lie in the span of the disagreements.

    Where all rows live in few dimensions the span may hold all of them and says nothing: each pair takes up two.
    """
    rest = (V - (V @ found.rows.T) @ found.rows).norm(dim=1)
    inside = rest <= INSIDE * V.norm(dim=1)
    return inside if 2 * int(inside.sum()) <= found.rank < V.shape[1] - 1 else torch.zeros_like(inside)


def switched(found: Disagreement, active: Tensor) -> Tensor:
    """(m,) bool: for which gaps, active (n, m) bool at the test points, the span of the columns meets the orthant."""
    n, m = active.shape
    side = 1.0 - 2.0 * active.double()                               # (n, m)
    share = (found.columns.T @ side).square().sum(0)                 # (m,): of side, inside the span
    # c >= 0 with side * c in the span, of sum one: what is outside the span must vanish.
    full = torch.linalg.qr(found.columns, mode="complete").Q[:, found.rank:]       # (n, n - r)
    named = torch.zeros(m, dtype=torch.bool)
    for j in share.argsort(descending=True)[:max(16, TRIED * found.rank)].tolist():
        outside = torch.cat([full.T * side[:, j], torch.ones(1, n, dtype=full.dtype)])
        goal = torch.zeros(len(outside), dtype=full.dtype)
        goal[-1] = 1.0
        c, rest = nnls(outside.numpy(), goal.numpy())
        named[j] = rest <= INSIDE * float((c * c).sum())**0.5
    return named if int(named.sum()) <= (1 + 2 * FALSE) * found.rank else torch.zeros_like(named)


def enough_tests(rank: int, gaps: int) -> int:
    """Test points that `switched` needs for at most FALSE false names per true one."""
    n = rank + 2
    while float(bdtrc(n - rank - 1, n - 1, 0.5)) * gaps > max(0.5, FALSE * rank):
        n += 1
    return n


def named_by(found: Disagreement, V: Tensor, active: Tensor) -> tuple[Tensor, int]:
    """((m,) bool: which of the gaps, with jumps V (m, d) and active (n, m) at the test points, hide a fold; how many
    more test points that disagree could name some: 0 where those would be dearer than one for each hidden fold)"""
    which, more = spanned(found, V), 0
    if not bool(which.any()) and found.saturated:
        apart = V / V.norm(dim=1, keepdim=True).clamp_min(1e-300)
        # Hidden folds with dependent rows would not show as the rank.
        if found.rank < int(torch.linalg.matrix_rank(apart @ apart.T, hermitian=True, rtol=1e-9)):
            more = max(0, enough_tests(found.rank, len(V)) - len(active))
            if more == 0:
                which = switched(found, active)
    return which, more if more <= found.rank else 0


def blame_of(V: Tensor, R: Tensor) -> Tensor:
    """(m,): how much of the disagreements R (n, d) each jump of V (m, d) explains, where chance gives n.

    A gap that hides two folds, D = v + v', leaves v or -v' in R: about half of D, up to its sign. What the other
    hidden folds leave is noise to it, of the size of R outside the span of all rows. So each coefficient counts in
    units of its own standard error: without that, the smallest rows, which scatter most, take all the blame.
    """
    m, d = V.shape
    U = V / V.norm(dim=1, keepdim=True).clamp_min(1e-300)
    inverse = torch.linalg.inv(U @ U.T + 1e-9 * torch.eye(m, dtype=V.dtype))
    C = inverse @ (U @ R.T)                                          # (m, n)
    rest = (R - C.T @ U).square().sum(1) / max(d - m, 1)             # (n,) variance per dimension
    floor = 1e-12 * R.square().sum(1) / d
    blame: Tensor = (C.square() / (inverse.diagonal()[:, None] * (rest + floor))).sum(1)
    return blame
