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

MOST = 32                   # rows combined in pairs


def suspects(gaps: list[Gap], u: Units, x_bad: Tensor, R_bad: Tensor, r_bad: Tensor, x: Tensor,
             R: Tensor, young: int = 0) -> list[tuple[Gap, float]]:
    """[(gap, t)]: gaps that hide a fold, each with a t between the two, best first; at most one per gap.

    u: the gaps as units. x_bad (n, d), R_bad (n, d), r_bad (n,): tests that disagree, in gradient and value;
    x, R: all tests. young: how many of the last rows of x_bad lie so close to the path that they likely disagree about
    one gap only; alone they are believed when nothing speaks against them.
    Everything is done with inner products, so that thousands of candidates cost little.
    """
    smallest = R_bad.norm(dim=1).argsort()[:MOST]
    B, beta = R_bad[smallest], (r_bad - (R_bad * x_bad).sum(1))[smallest]        # (b, d), (b,)
    mix = mixtures(len(B))                                           # (c, b), entries -1, 0, 1
    size = (mix @ (B @ B.T) * mix).sum(1)                            # (c,) squared norms
    enough = size > 1e-12 * float(R.square().sum(1).max())
    alone = torch.zeros(len(mix), dtype=torch.bool)
    alone[:len(B)] = smallest >= len(R_bad) - young
    mix, size, alone = mix[enough], size[enough], alone[enough]
    if len(mix) == 0:
        return []
    beta = mix @ beta                                                # (c,)
    segments = list({id(b.on): b.on for b in gaps}.values())
    which = {id(on): i for i, on in enumerate(segments)}
    seg = torch.tensor([which[id(b.on)] for b in gaps])              # (m,)
    U, X0 = torch.stack([on.u for on in segments]), torch.stack([on.x0 for on in segments])
    VU, VX = mix @ (B @ U.T), mix @ (B @ X0.T) + beta[:, None]       # (c, segments): slope, and value at t = 0
    lo = torch.tensor([b.left.t2 for b in gaps], dtype=torch.float64)
    hi = torch.tensor([b.right.t1 for b in gaps], dtype=torch.float64)
    gap_of, t1 = crossings(seg, lo, hi, -VX / VU)                    # (c,), (c,)
    ok = gap_of >= 0
    mix, size, alone, beta, gap_of, t1, VU, VX = (v[ok] for v in (mix, size, alone, beta, gap_of, t1, VU, VX))
    if len(mix) == 0:
        return []
    J, jb = u.W * u.A[0][:, None], u.b * u.A[0]                      # the jump of each gap along the path
    rows = torch.arange(len(J))
    JU, JX = (J @ U.T)[rows, seg], (J @ X0.T)[rows, seg] + jb        # (m,)
    lo, hi, on = lo[gap_of], hi[gap_of], seg[gap_of]
    VU, VX = VU.gather(1, on[:, None])[:, 0], VX.gather(1, on[:, None])[:, 0]
    JU, JX = JU[gap_of], JX[gap_of]
    before = R.square().sum(1)                                       # (n,)
    RV, RJ = (R @ B.T) @ mix.T, (R @ J.T)[:, gap_of]                 # (n, c)
    xV, xJ = (x @ B.T) @ mix.T + beta, (x @ J.T + jb)[:, gap_of]
    VJ, JJ = (mix @ (B @ J.T)).gather(1, gap_of[:, None])[:, 0], J.square().sum(1)[gap_of]
    old = u.A[0][gap_of] * xJ > 0                                    # (n, c)
    found: dict[int, tuple[float, float]] = {}
    for s in (1.0, -1.0):
        slope1, slope2 = s * VU, JU - s * VU
        t2 = -(JX - s * VX) / slope2
        # Both halves point along the path: the far side is where sign(slope) times the jump is positive.
        one = (slope1.sign() * s * xV > 0).double() - old.double()   # change of activity: coefficient of v
        two = (slope2.sign() * (xJ - s * xV) > 0).double() - old.double()
        vv, vr, rr = size, s * VJ - size, JJ - 2 * s * VJ + size
        change2 = one * one * vv + 2 * one * two * vr + two * two * rr
        after = before[:, None] - 2 * (one * s * RV + two * (RJ - s * RV)) + change2     # (n, c)
        moved = change2 > 1e-12 * before.max()
        better = ((after < 0.999 * before[:, None]) & moved).sum(0)
        worse = ((after > 1.001 * before[:, None]) & moved).sum(0)
        solved = ((after < 1e-11 * before[:, None]) & moved).sum(0)
        # One row agrees by construction; a second one is evidence, a row that gets worse is evidence against.
        score = 2.0 * (solved - 1) + better - 1 - 2.0 * worse
        believed = ((better >= 2) & (score > 0)) | (alone & (better >= 1) & (worse == 0))
        score = score.clamp_min(0.5)
        good = believed & (t2 > lo) & (t2 < hi) & (t2 != t1)
        for c in good.nonzero().flatten().tolist():
            j = int(gap_of[c])
            if float(score[c]) > found.get(j, (0.0, 0.0))[0]:
                found[j] = (float(score[c]), 0.5 * float(t1[c] + t2[c]))
    order = sorted(found.items(), key=lambda kv: -kv[1][0])
    return [(gaps[j], t) for j, (_, t) in order]


def mixtures(n: int) -> Tensor:
    """(c, n): single rows, then sums and differences of two."""
    single = torch.eye(n, dtype=torch.float64)
    if n < 2:
        return single
    i, j = torch.triu_indices(n, n, 1)
    return torch.cat([single, single[i] - single[j], single[i] + single[j]])


def crossings(seg: Tensor, lo: Tensor, hi: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """(gap (c,), t (c,)): which gap each candidate meets, and where; gap -1 if none. t: (c, segments)"""
    where = torch.full((len(t),), -1)
    at = torch.full((len(t),), float("nan"), dtype=torch.float64)
    for i in range(t.shape[1]):
        index = (seg == i).nonzero().flatten()
        here = t[:, i].nan_to_num(float("-inf")).contiguous()
        k = torch.searchsorted(lo[index], here) - 1
        inside = (k >= 0) & (here < hi[index][k.clamp_min(0)])
        where[inside] = index[k[inside]]
        at[inside] = here[inside]
    return where, at
