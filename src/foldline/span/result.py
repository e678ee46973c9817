"""What a search for the span returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foldline.results import Result


@dataclass(frozen=True)
class SpanCertificate:
    """What the last probes say: `stable` of them in a row stayed in the span.

    At `confidence`, at most `fraction_bound` of such probes leave it. `null_moves` of them were known points moved
    far into the null space; the answer there changed by at most `null_change`, relative to the largest answer.
    """

    stable: int
    fraction_bound: float
    confidence: float
    null_moves: int
    null_change: float
    gap: float
    gap_confidence: float

    @property
    def holds(self) -> bool:
        return self.stable > 0 and self.gap_confidence > 0.5


@dataclass(frozen=True, eq=False, kw_only=True)
class SpanResult(Result):
    """`gradients` holds every row that was seen, with its point, its value and its output; `basis` its row space.

    Rows are in the coordinates of `link` (identity, logit or log-ratio), so that value = gradient . point + intercept
    on each piece. From labels, rows are unit normals of the decision boundary and the values are zero.
    """

    basis: Tensor               # (rank, d) orthonormal rows
    rank: int
    upper_bound: int            # rank when sharp and confirmed; in noise the probes that count; else d
    singular_values: Tensor     # (r,) of the unit rows
    directions: Tensor          # (r, d) right singular vectors, one per singular value
    noise_floor: float          # on the scale of singular_values
    gradients: Tensor           # (m, d)
    values: Tensor              # (m,)
    points: Tensor              # (m, d)
    outputs: Tensor             # (m,) which output each row belongs to
    link: str
    ranks: Tensor               # (m,) rank after each row

    @property
    def null_dimension(self) -> int:
        return self.directions.shape[1] - self.rank
