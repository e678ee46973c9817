"""Hidden folds read off test points: where a single unit is missing, the disagreement is that unit.

A gap that is taken for one fold but hides two, D = D_p + D_q, is wrong at a test point between their hyperplanes, and
the disagreement there is exactly +-D_q: gradient and intercept, hence a hyperplane that meets the path inside the
gap. Rows that disagree about several gaps give mixtures; differences of rows may still isolate one. A candidate is
believed when splitting its gap also shrinks the disagreement at other test points, which mixtures do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.extract.gradient_lines import Gap
from foldline.extract.units import Units

MOST = 40                   # rows combined in pairs


def suspects(gaps: list[Gap], u: Units, x_bad: Tensor, R_bad: Tensor, r_bad: Tensor, x: Tensor,
             R: Tensor) -> list[tuple[Gap, float]]:
    """[(gap, t)]: gaps that hide a fold, each with a t between the two, best first; at most one per gap.

    u: the gaps as units. x_bad (n, d), R_bad (n, d), r_bad (n,): tests that disagree, in gradient and value;
    x, R: all tests.
    """
    V, beta = candidates(x_bad, R_bad, r_bad)                        # (c, d), (c,)
    if len(V) == 0:
        return []
    J, jb = u.W * u.A[0][:, None], u.b * u.A[0]                      # the jump of each gap along the path
    before = R.square().sum(1)                                       # (n,)
    found: dict[int, tuple[float, float]] = {}
    place = crossings(gaps, V, beta)
    for c, (j, t) in enumerate(place):
        if j < 0:
            continue
        b = gaps[j]
        for s in (1.0, -1.0):
            v, vb = s * V[c], s * beta[c]
            rest, rb = J[j] - v, jb[j] - vb
            slope = float(rest @ b.on.u)
            if slope == 0.0:
                continue
            t2 = -float(rest @ b.on.x0 + rb) / slope
            if not b.left.t2 < t2 < b.right.t1 or t2 == t:
                continue
            # Both halves point along the path: far side active where sign(slope) times the jump is positive.
            one = torch.sign(v @ b.on.u) * (x @ v + vb) > 0
            two = torch.sign(rest @ b.on.u) * (x @ rest + rb) > 0
            old = u.A[0, j] * (x @ J[j] + jb[j]) > 0
            change = one[:, None] * v + two[:, None] * rest - old[:, None] * J[j]          # (n, d)
            moved = change.square().sum(1) > 1e-12 * before.max()
            after = (R - change).square().sum(1)
            better = int((after < 0.999 * before)[moved].sum())
            worse = int((after > 1.001 * before)[moved].sum())
            solved = int(((after < 1e-12 * before) & moved).sum())
            # One row agrees by construction; a second one is evidence, a row that gets worse is evidence against.
            score = 2.0 * (solved - 1) + better - 1 - 2.0 * worse
            if better >= 2 and score > 0 and score > found.get(j, (0.0, 0.0))[0]:
                found[j] = (score, 0.5 * (t + t2))
    order = sorted(found.items(), key=lambda kv: -kv[1][0])
    return [(gaps[j], t) for j, (_, t) in order]


def candidates(x: Tensor, R: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Affine functions that may be a single unit: disagreeing rows, then sums and differences of the smallest."""
    beta = r - (R * x).sum(1)                                        # (n,)
    order = R.norm(dim=1).argsort()[:MOST]
    V, B = [R[order]], [beta[order]]
    n = len(order)
    if n > 1:
        i, j = torch.triu_indices(n, n, 1)
        for s in (1.0, -1.0):
            V.append(R[order][i] - s * R[order][j])
            B.append(beta[order][i] - s * beta[order][j])
    all_V, all_B = torch.cat(V), torch.cat(B)
    size = all_V.norm(dim=1)
    keep = size > 1e-6 * float(R.norm(dim=1).max())
    return all_V[keep], all_B[keep]


def crossings(gaps: list[Gap], V: Tensor, beta: Tensor) -> list[tuple[int, float]]:
    """For each candidate the gap that its hyperplane meets, and where; (-1, nan) if none."""
    out = [(-1, float("nan"))] * len(V)
    for on in {id(b.on): b.on for b in gaps}.values():
        mine = [(i, b) for i, b in enumerate(gaps) if b.on is on]
        left = torch.tensor([b.left.t2 for _, b in mine], dtype=torch.float64)
        t = -(V @ on.x0 + beta) / (V @ on.u)                         # (c,)
        at = torch.searchsorted(left, t.nan_to_num(float("-inf"))) - 1
        for c, (k, tc) in enumerate(zip(at.tolist(), t.tolist(), strict=True)):
            if k >= 0 and left[k] < tc < mine[k][1].right.t1:
                out[c] = (mine[k][0], tc)
    return out
