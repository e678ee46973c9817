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
        self._lost = 0

    @property
    def used(self) -> int:
        return self._used

    @property
    def lost(self) -> int:
        """Rows whose replies were lost on the way: paid for and asked again, so part of the budget, but not of `used`,
        which is the same whatever the network did."""
        return self._lost

    @property
    def remaining(self) -> int | None:
        return None if self.budget is None else self.budget - self._used - self._lost

    def charge(self, rows: int) -> None:
        self._afford(rows)
        self._used += rows

    def lose(self, rows: int) -> None:
        """Bill a lost reply; refused if asking its rows again would cross the budget."""
        self._afford(rows)
        self._lost += rows

    def _afford(self, rows: int) -> None:
        spent = self._used + self._lost
        if self.budget is not None and spent + rows > self.budget:
            raise BudgetExhausted(rows, spent, self.budget)


class Share(Ledger):
    """A part of another ledger: every row counts in both.

    Lost rows are paid by the whole alone: how far a part gets must not depend on the network.
    """

    def __init__(self, whole: Ledger, rows: int) -> None:
        super().__init__(rows)
        self.whole = whole

    def charge(self, rows: int) -> None:
        self._afford(rows)
        self.whole.charge(rows)
        self._used += rows

    def lose(self, rows: int) -> None:
        self.whole.lose(rows)
