"""Weak directions, asked about: is a direction that few gradients show really there?

Gradients from differences are off where a fold lies between the points of a difference; such an error is a direction
of its own, and the spectrum cannot tell it from a unit that is rarely on. The target can: at the point that shows the
direction v most, it is moved along v both ways by a small part of the step that the differences took. If v is real
the answer rises on both sides as the gradient says; if it is the error of one axis, it does not. Cost: 3 rows each.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from foldline.span.differences import Differences
from foldline.span.rank import CLIFF
from foldline.span.seen import Seen

PARTS = (0.1, 0.02)         # of the step of the differences
NEAR = 100.0                # directions whose singular value lies within this of the noise are asked about
AGREES = 0.5                # of the slope that the gradient shows, on both sides
AT_MOST = 64                # directions in one pass

Verdict = Literal["real", "error", "unknown"]


class WeakDirections:
    """Remembers what was asked, so that no direction of a point is asked about twice."""

    def __init__(self, differences: Differences) -> None:
        self.differences = differences
        self.steps: dict[int, tuple[float, Tensor]] = {}        # group of rows -> step and outputs of its differences
        self.asked: set[int] = set()
        self.unknown = 0

    def review(self, seen: Seen) -> bool:
        """Ask about what stands near the gap and about what was left out; True if the rank must be decided again."""
        D, s, V = seen.decide()
        if D.rank == 0 or D.rank >= seen.d or (D.gap >= CLIFF and D.kind == "noise"):
            return False
        left = [(g, self.outside(seen, g, V[:D.rank])) for g in sorted(seen.left_out)]
        near = [j for j in range(D.rank) if D.rank < len(s) and float(s[j]) < NEAR * float(s[D.rank])]
        kept = [(self.shows_most(seen, V[j]), V[j]) for j in reversed(near)]
        changed = False
        for group, v in [*left, *kept][:AT_MOST]:
            if group in self.asked or group not in self.steps:
                continue
            self.asked.add(group)
            verdict = self.verdict(seen, group, v)
            self.unknown += verdict == "unknown"
            if verdict == "real" and group in seen.left_out:
                seen.trusted.add(group)
                changed = True
            elif verdict == "error" and group not in seen.left_out:
                seen.errors.add(group)
                changed = True
        return changed

    def verdict(self, seen: Seen, group: int, v: Tensor) -> Verdict:
        step, live = self.steps[group]
        members = [i for i, g in enumerate(seen.groups) if g == group]              # of the useful rows
        rows = [seen.useful[i] for i in members]
        slopes = torch.stack([seen.rows[i] for i in rows]) @ v                      # (k',)
        sizes = torch.stack([seen.rows[i].norm() for i in rows])                    # (k',)
        best = int((slopes.abs() / sizes).argmax())
        expected, x = float(slopes[best]), seen.points[rows[best]]
        column = int(torch.nonzero(live == seen.outputs[rows[best]])[0])
        rounding = seen.noises[members[best]] * float(sizes[best]) * step / seen.d ** 0.5   # of one answer
        for part in PARTS:
            t = part * step
            if 4 * rounding / t > 0.25 * abs(expected):
                return "unknown"
            moved, y = self.differences.slopes(x, torch.stack([0 * v, t * v, -t * v]), live)    # (3, d), (3, k')
            along = moved @ v                                                       # (3,) as rounded
            if float(along[1]) == 0.0 or float(along[2]) == 0.0:
                return "unknown"
            rises = (y[1:, column] - y[0, column]) / along[1:]                      # (2,) slopes to both sides
            share = rises / expected
            if float(share.min()) >= AGREES:
                return "real"
            if float(share.max()) < AGREES:
                return "error"
        return "unknown"                                        # the sides differ however close: a fold at the point

    @staticmethod
    def shows_most(seen: Seen, v: Tensor) -> int:
        return seen.groups[int((seen.U @ v).abs().argmax())]

    @staticmethod
    def outside(seen: Seen, group: int, V: Tensor) -> Tensor:
        rows = seen.U[torch.tensor(seen.groups) == group]
        rest = rows - (rows @ V.T) @ V                                              # (k', d)
        e = rest[int(rest.norm(dim=1).argmax())]
        unit: Tensor = e / e.norm().clamp_min(1e-300)
        return unit
