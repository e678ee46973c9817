"""How good an imitation is: accuracy, agreement with the target, and the queries needed for a share of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from foldline.errors import BadInput
from foldline.oracles.local import value_oracle
from foldline.results import fraction_upper_bound

SHARES = (0.90, 0.95, 0.99)


@dataclass(frozen=True)
class ImitationScore:
    """Fractions of the test rows. `disagreement_bound`: with 95 % confidence the two differ on no more than that."""

    agreement: float
    disagreement_bound: float
    rows: int
    accuracy: float | None = None
    target_accuracy: float | None = None

    @property
    def share(self) -> float | None:
        """Of the target's accuracy."""
        return None if not self.accuracy or not self.target_accuracy else self.accuracy / self.target_accuracy


def score_imitation(student: Any, target: Any, x: Tensor, y: Tensor | None = None) -> ImitationScore:
    """student and target: torch modules, callables or target strings; x (n, d), labels y (n,) where they are known."""
    if len(x) == 0 or (y is not None and len(y) != len(x)):
        raise BadInput(f"Scoring needs rows, and as many labels as rows: {len(x)} rows"
                       f"{'' if y is None else f' and {len(y)} labels'} were given.")
    a, b = (predicted(net, x) for net in (student, target))             # (n,)
    off = int((a != b).sum())
    mine = None if y is None else float((a == y).double().mean())
    theirs = None if y is None else float((b == y).double().mean())
    return ImitationScore(1 - off / len(x), fraction_upper_bound(off, len(x), 0.95), len(x), mine, theirs)


def predicted(net: Any, x: Tensor) -> Tensor:
    out = value_oracle(net)(x)
    if not out.is_floating_point():
        return out[:, 0].long()
    return out.argmax(1) if out.shape[1] > 1 else (out[:, 0] >= 0).long()


def queries_needed(curve: Sequence[tuple[int, float]], target_accuracy: float,
                   shares: Sequence[float] = SHARES) -> Mapping[float, int | None]:
    """The smallest number of queries on a curve of (queries, accuracy) that reaches each share of the target's; None
    where the curve does not."""
    return {share: min((n for n, accuracy in curve if accuracy >= share * target_accuracy), default=None)
            for share in shares}
