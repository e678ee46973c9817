"""Well-separated networks go to exact extraction: one line, one gradient a fold, digits to 1e-10.

The hand-over is bounded. Once extraction has counted the folds of its line (about 5 rows each) it may ask one
gradient a piece and little more; many folds, or a budget that does not suffice, mean that the network is not of that
kind, and learning goes on from what the lines show. Either way the probes decide, not extraction's own certificate;
extraction's last probes are Gaussian and fresh, so they count among them and nothing is asked twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from foldline.extract.learn_model import Array, Model
from foldline.oracles.ledger import Share
from foldline.oracles.protocols import InFront, Kind, Source, ValueOracle

MOST_FOLDS = 64
FIRST_ROWS = 64 + 12 * MOST_FOLDS       # the search of a line with that many folds
MOST_LINES = 3


class Allowance(Share):
    """A smaller budget inside another ledger, which may be raised."""

    def allow(self, rows: int) -> None:
        self.budget = self.used + rows


class Last(InFront):
    """A source that remembers the last batch it answered."""

    kind: Kind = "values"

    def __init__(self, source: Source) -> None:
        self.source, self.width = source, source.width
        self.x = self.y = torch.zeros(0, 0)

    def answer(self, x: Tensor) -> Tensor:
        self.x, self.y = x, self.source.answer(x)
        return self.y


def extracted(f: ValueOracle, *, rng: torch.Generator) -> tuple[Model, Array, Array] | None:
    """The model exact extraction finds within its allowance, with the probes it was last put before, or None."""
    from foldline.extract.values import extract_from_values
    allowance, last = Allowance(f.ledger, FIRST_ROWS), Last(f.source)
    lines, x, y = 0, torch.zeros(0, f.dim), torch.zeros(0, f.outputs)

    def watch(stage: str, numbers: Mapping[str, float]) -> None:
        nonlocal lines, x, y
        if stage == "check":                                        # reported right after its probes were asked
            x, y = last.x.double(), last.y.double()
        if stage != "folds":
            return
        lines += 1
        folds = int(numbers.get("folds", 0))
        enough = (folds + 2) * (f.dim + 2) * 11 // 10 + 64
        allowance.allow(enough if folds <= MOST_FOLDS and lines <= MOST_LINES else 0)

    found = extract_from_values(ValueOracle(last, allowance), rng=rng, progress=watch)
    if not found.status.ok or found.network.link != "identity":
        return None
    fresh = len(x) == found.certificate.probes
    return Model.of(found.network), x.numpy()[:len(x) * fresh], y.numpy()[:len(x) * fresh]
