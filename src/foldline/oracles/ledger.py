"""Counting rows against a hard budget."""

from __future__ import annotations

from foldline.errors import BudgetExhausted


class Ledger:
    """Counts rows before they are sent; a batch that would cross the budget is refused whole.

    Oracles on the same target may share one, so that a budget holds for all of them together.
    """

    def __init__(self, budget: int | None = None) -> None:
        if budget is not None and (budget != int(budget) or budget < 0):
            raise ValueError(f"A budget is a whole number of rows, zero or more, not {budget!r}.")
        self.budget = None if budget is None else int(budget)
        self._used = 0

    @property
    def used(self) -> int:
        return self._used

    @property
    def remaining(self) -> int | None:
        return None if self.budget is None else self.budget - self._used

    def charge(self, rows: int) -> None:
        if self.budget is not None and self._used + rows > self.budget:
            raise BudgetExhausted(rows, self._used, self.budget)
        self._used += rows
