"""An extraction on a terminal: a live table of what is found and what it cost; a plain line per stage in a pipe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from foldline.cli.live import LiveDisplay

if TYPE_CHECKING:
    from rich.table import Table

    from foldline.oracles.protocols import Oracle

EVERY = 5.0                 # seconds between plain lines of one stage
NAMES = {"folds": "breakpoints found", "units": "units confirmed", "residual": "residual"}


class Display(LiveDisplay):
    """with Display(oracle) as d: extract_from_values(..., progress=d.progress)"""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self.oracle = oracle
        self.seen: dict[str, float] = {}
        self.stage, self.said = "starting", 0.0

    def progress(self, stage: str, numbers: Mapping[str, float]) -> None:
        self.seen.update({k: v for k, v in numbers.items() if k in NAMES})
        now = time.monotonic()
        if stage != self.stage or now - self.said > EVERY:
            self.line(f"{stage}: " + "; ".join(f"{name} {value}" for name, value in self.rows()))
            self.said = now
        self.stage = stage

    def rows(self) -> list[tuple[str, str]]:
        budget = self.oracle.budget
        asked = f"{self.oracle.used:,} of {'no limit' if budget is None else f'{budget:,}'}"
        found = [(NAMES[k], f"{self.seen[k]:,.3g}" if k == "residual" else f"{self.seen[k]:,.0f}")
                 for k in NAMES if k in self.seen]
        return [*found, ("queries", asked)]

    def table(self) -> Table:
        from rich.table import Table
        table = Table("what", "so far", title=f"extract: {self.stage}", title_justify="left")
        for name, value in self.rows():
            table.add_row(name, value)
        table.add_row("seconds", f"{time.monotonic() - self.started:.1f}")
        return table
