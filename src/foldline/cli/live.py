"""What a running command shows: a live table on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

from foldline.cli.common import console

if TYPE_CHECKING:
    from rich.table import Table


class LiveDisplay(ABC):
    """On a terminal table() is drawn eight times a second and gone at the end; in a pipe there are lines."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.live: Any = None

    @abstractmethod
    def table(self) -> Table: ...

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.live import Live
            self.live = Live(get_renderable=self.table, console=console(), refresh_per_second=8, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def line(self, text: str) -> None:
        """A line with the time, where there is no table."""
        if self.live is None:
            sys.stderr.write(f"[{time.monotonic() - self.started:7.1f} s] {text}\n")
            sys.stderr.flush()
