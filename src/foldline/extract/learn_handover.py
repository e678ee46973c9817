"""Well-separated networks go to exact extraction: one line, one gradient a fold, digits to 1e-10.

The hand-over is bounded. Once extraction has counted the folds of its line (about 5 rows each) it may ask one
gradient a piece and little more; many folds, or a budget that does not suffice, mean that the network is not of that
kind, and learning goes on from what the lines show. Either way the probes decide, not extraction's own certificate.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from foldline.errors import BudgetExhausted
from foldline.extract.learn_model import Model
from foldline.oracles.ledger import Ledger
from foldline.oracles.protocols import ValueOracle

MOST_FOLDS = 64
FIRST_ROWS = 64 + 12 * MOST_FOLDS       # the search of a line with that many folds
MOST_LINES = 3


class Allowance(Ledger):
    """A smaller budget inside another ledger: every row counts in both."""

    def __init__(self, outer: Ledger, rows: int) -> None:
        super().__init__(rows)
        self.outer = outer

    def charge(self, rows: int) -> None:
        if self.budget is not None and self.used + rows > self.budget:
            raise BudgetExhausted(rows, self.used, self.budget)
        self.outer.charge(rows)
        super().charge(rows)

    def allow(self, rows: int) -> None:
        self.budget = self.used + rows


def extracted(f: ValueOracle, *, rng: torch.Generator) -> Model | None:
    """The model exact extraction finds within its allowance, or None."""
    from foldline.extract.values import extract_from_values
    allowance = Allowance(f.ledger, FIRST_ROWS)
    lines = 0

    def watch(stage: str, numbers: Mapping[str, float]) -> None:
        nonlocal lines
        if stage != "folds":
            return
        lines += 1
        folds = int(numbers.get("folds", 0))
        enough = (folds + 2) * (f.dim + 2) * 11 // 10 + 64
        allowance.allow(enough if folds <= MOST_FOLDS and lines <= MOST_LINES else 0)

    if f.dim == 1:                                                  # no gradients to ask: a line is all there is
        return None
    try:
        found = extract_from_values(ValueOracle(f.source, allowance), rng=rng, progress=watch)
    except ArithmeticError:                                         # two folds in one place: not its kind of network
        return None
    return Model.of(found.network) if found.status.ok and found.network.link == "identity" else None
