"""How many directions were seen: a gap test on singular values against a noise floor.

Rows are gradients scaled to unit length, so the singular values of the noise are about the rows' relative error.
Two kinds of gap count, and each has its own condition:

noise gap  everything after the gap lies at or below the arithmetic's floor. One or two values there are enough when
           the gap is three decades wide: signal does not fall off a cliff just above the rounding error by chance.
tail gap   the values after the gap are flat, but above the arithmetic's floor (what is left of an initialisation,
           weights rounded to float32). Then at least TAIL of them are needed, they must lie below `negligible`
           times the largest, and the gap must be larger than the tail's own spacings explain: if gap and tail
           spacings had one mean, P(gap / mean of T spacings > t) = (1 + t / T)^-T for exponential spacings
           (singular values repel, so exponential spacings overstate the chance of a gap). With m places to look,
           p = m (1 + t / T)^-T, and 1 - p is the stated confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

TAIL = 12               # values after a tail gap, before a search may stop at it
SHORT_TAIL = 6          # the same when a budget ended the search: the p-value has to carry it
MIN_GAP = 3.0           # a step smaller than this is not called a gap, however flat the tail
ROUGH_GAP = 10.0        # the same for differences of values, whose errors are not all alike
CLIFF = 1e3             # a noise gap this wide needs no long tail
BLUR = 64.0             # how far off the estimated floor may be
NEGLIGIBLE = 1e-5       # the paper's own rank threshold, relative to the largest singular value
CONFIDENCE = 0.999


@dataclass(frozen=True)
class RankDecision:
    rank: int
    gap: float              # s_rank / s_(rank + 1); inf when nothing follows or what follows is zero
    noise_floor: float      # the larger of the arithmetic's floor and the first value after the gap
    p_value: float          # chance of such a gap in a spectrum without one; 1 where no test was possible
    kind: str               # "noise", "tail", "none" (no gap: the rank counts what stands above the floor), "zero"
    tail: int               # values after the gap

    @property
    def confidence(self) -> float:
        return 1.0 - self.p_value

    @property
    def gap_found(self) -> bool:
        return self.kind in ("noise", "tail", "zero")


def decide_rank(s: Tensor, *, floor: float, negligible: float = NEGLIGIBLE, confidence: float = CONFIDENCE,
                min_tail: int = TAIL, min_gap: float = MIN_GAP) -> RankDecision:
    """s: (m,) singular values of unit rows, largest first; floor: what rounding alone can make of a zero."""
    s = s.double()
    if len(s) == 0 or float(s[0]) <= floor:
        return RankDecision(0, math.inf, floor, 0.0, "zero", len(s))
    m = len(s)
    held = s.clamp_min(floor / 16)                              # below the arithmetic's floor sizes mean nothing
    above = int((s > floor).sum())                              # what stands clear of rounding
    # The floor is an estimate: a cliff that ends within BLUR of it is the noise's, whatever stands just above.
    clear = int((s > BLUR * floor).sum())
    if 0 < clear < m and float(held[clear - 1] / held[clear]) >= CLIFF:
        return RankDecision(clear, float(held[clear - 1] / held[clear]), max(floor, float(s[clear])), 1.0 / CLIFF,
                            "noise", m - clear)
    last = tail_gap(held, above, negligible, min_tail, min_gap, 1.0 - confidence)
    if last is not None:
        return replace(last, noise_floor=float(s[last.rank]))
    if above < m:
        gap = float(held[above - 1] / held[above])
        wide = gap >= CLIFF
        return RankDecision(above, gap, max(floor, float(s[above])), 1.0 / CLIFF if wide else 1.0,
                            "noise" if wide else "none", m - above)
    return RankDecision(m, math.inf, floor, 1.0, "none", 0)


def tail_gap(s: Tensor, above: int, negligible: float, min_tail: int, min_gap: float,
             p_limit: float) -> RankDecision | None:
    """The last significant gap that is followed by at least min_tail values, all negligible or below the floor.

    The last, not the widest: what stands above it stands clear of the tail, even if a wider gap comes before.
    """
    m = len(s)
    logs = s.log()
    last: RankDecision | None = None
    for r in range(1, m - max(min_tail, 2) + 1):                # s[:r] signal, s[r:] tail
        if r < above and float(s[r] / s[0]) > negligible:
            continue
        T = m - r - 1
        spacing = max(float(logs[r] - logs[-1]) / T, 0.02)
        gap = float(logs[r - 1] - logs[r])
        p = min(1.0, m * (1.0 + gap / spacing / T) ** -T)
        if gap >= math.log(min_gap) and p <= p_limit:
            last = RankDecision(r, math.exp(gap), float(s[r]), p, "noise" if r >= above else "tail", m - r)
    return last


def singular(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Left vectors (m, r), singular values (r,) and right vectors (r, d), r = min(m, d); no rows, no values."""
    if len(rows) == 0:
        return rows.new_zeros(0, 0), rows.new_zeros(0), rows.new_zeros(0, rows.shape[1])
    L, s, V = torch.linalg.svd(rows, full_matrices=False)
    return L, s, V
