"""What the server allows one client: requests per second, rows in all."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

CLIENTS = 10_000            # remembered at most; the one seen longest ago is forgotten first


class RateLimit:
    """A token bucket per client: `rate` requests per second on average, `burst` at once."""

    def __init__(self, rate: float, burst: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not rate > 0:
            raise ValueError(f"A rate limit is a positive number of requests per second, not {rate!r}.")
        self.rate, self.burst, self.clock = rate, max(1.0, rate if burst is None else burst), clock
        self.buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()     # client -> (tokens, seen at)
        self.lock = threading.Lock()

    def wait(self, client: str) -> float:
        """0 if the request may pass now (and is counted), else the seconds until one may."""
        with self.lock:
            now = self.clock()
            tokens, seen = self.buckets.pop(client, (self.burst, now))
            tokens = min(self.burst, tokens + (now - seen) * self.rate)
            allowed = tokens >= 1.0
            self.buckets[client] = (tokens - 1.0 if allowed else tokens, now)
            if len(self.buckets) > CLIENTS:
                self.buckets.popitem(last=False)
            return 0.0 if allowed else (1.0 - tokens) / self.rate


class RowBudget:
    """Rows a client may ask in all: the defence that the report recommends a number for.

    Counted for all clients together unless they have keys: an address is no identity.
    """

    def __init__(self, rows: int) -> None:
        if rows < 0:
            raise ValueError(f"A query budget is zero rows or more, not {rows!r}.")
        self.rows = rows
        self.used: dict[str, int] = {}
        self.lock = threading.Lock()

    def charge(self, client: str, rows: int) -> int | None:
        """None if the rows may be answered (and are counted), else how many were used before."""
        with self.lock:
            used = self.used.get(client, 0)
            if used + rows > self.rows:
                return used
            self.used[client] = used + rows
            return None
