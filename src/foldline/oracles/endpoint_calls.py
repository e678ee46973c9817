"""One request that is tried until its reply counts, and the gate that all requests pass.

A reply may be late, refused, cut short or wrong; each is asked again after a growing and jittered pause, never
sooner than the server's Retry-After. What was sent and what was lost is counted in rows, since rows are billed.
"""

from __future__ import annotations

import contextlib
import email.utils
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from foldline.errors import BadAnswer, BudgetExhausted, Missing, Stopped, TargetError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
FIRST_PAUSE = 0.05          # seconds; doubles with every failure of the same request
LONGEST_PAUSE = 20.0
LONGEST_OBEDIENCE = 600.0   # a server that asks for more patience than this ends the run instead
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


def client_library() -> type[httpx.Client]:
    try:
        import httpx
    except ImportError as error:
        raise Missing("HTTP targets need httpx, which is not installed: pip install 'foldline[http]'.") from error
    return httpx.Client


@dataclass
class Bill:
    """Rows on the wire. sent = answered + lost + refused, exactly, once nothing is under way."""

    sent: int = 0           # rows of every attempt
    answered: int = 0       # rows whose reply counted
    lost: int = 0           # rows the target may have answered and billed, but whose reply did not arrive whole
    refused: int = 0        # rows the target said it did not answer (429, 503), or never received
    requests: int = 0
    repeated: int = 0       # of these, requests that were asked again
    waited: float = 0.0     # seconds from a request's first byte out to its reply's last one in, summed over requests
    under_way: float = 0.0  # seconds with at least one request under way: the rest is the client's own doing


class Gate:
    """All requests of a source pass it: at most `rate` per second, and none before the server's Retry-After."""

    def __init__(self, rate: float | None) -> None:
        self.gap = 0.0 if rate is None else 1.0 / rate
        self.next = 0.0
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def enter(self) -> None:
        while True:
            with self.lock:
                now = time.monotonic()
                pause = self.next - now
                if pause <= 0:
                    self.next = max(self.next, now) + self.gap
                    return
            self.sleep(pause)

    def close_for(self, seconds: float) -> None:
        with self.lock:
            self.next = max(self.next, time.monotonic() + seconds)

    def sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Stopped("Stopped while waiting for the target.")


class Caller:
    """Sends one request until `read` accepts its reply. Shared by the threads of a source."""

    def __init__(self, client: httpx.Client, *, attempts: int, timeout: float, rate: float | None) -> None:
        self.client, self.attempts, self.timeout = client, attempts, timeout
        self.gate, self.bill = Gate(rate), Bill()
        self.lock = threading.Lock()
        self.jitter = random.Random()           # pauses only: no result depends on it
        self.flying, self.took_off = 0, 0.0
        self.on_lost: Callable[[int], None] = ignore
        self.on_sent: Callable[[int], None] = ignore

    def call(self, method: str, url: str, *, rows: int, read: Callable[[bytes, str], T], largest: int,
             content: bytes | None = None, headers: Mapping[str, str] | None = None) -> T:
        import httpx
        failure = "nothing was tried"
        for attempt in range(self.attempts):
            self.gate.enter()
            self.send(rows, again=attempt > 0)
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * self.jitter.uniform(0.5, 1.5)
            try:
                status, reply, body = self.once(method, url, content, headers, largest)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                self.refuse(rows)               # no connection: not one row left this machine
                failure = why(error)
            except (httpx.TransportError, httpx.DecodingError) as error:
                self.lose(rows)
                failure = why(error)
            except BadAnswer as error:
                self.lose(rows)
                failure = str(error)
            except BaseException:
                self.lose(rows, charge=False)
                raise
            else:
                if status == 200:
                    try:
                        found = read(body, reply.get("content-type", ""))
                    except BadAnswer as error:
                        self.lose(rows)
                        failure = str(error)
                    else:
                        self.count(answered=rows)
                        return found
                elif status in AGAIN:
                    if status in (429, 503):
                        self.refuse(rows)
                    else:
                        self.lose(rows)
                    failure = f"status {status}"
                    pause = max(pause, self.patience(reply.get("retry-after"), status, url))
                else:
                    self.refuse(rows)
                    raise refusal(status, body, url, reply, rows)
            if attempt + 1 < self.attempts:
                self.gate.sleep(pause)
        asked = f" to {rows} rows" if rows else ""
        raise TargetError(f"{url} gave no usable reply{asked} in {self.attempts} attempts; the last: "
                          f"{failure.rstrip('.')}.")

    def once(self, method: str, url: str, content: bytes | None, headers: Mapping[str, str] | None,
             largest: int) -> tuple[int, Mapping[str, str], bytes]:
        """The whole reply, at most `largest` bytes and `timeout` seconds: an endless one must not hold the run."""
        with self.flight() as started, \
                self.client.stream(method, url, content=content, headers=dict(headers or {})) as reply:
            parts, size = [], 0
            for part in reply.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > largest:
                    raise BadAnswer(f"The reply is longer than {largest} bytes, more than its answers can need.")
                if time.monotonic() - started > 2 * self.timeout:
                    raise BadAnswer(f"The reply took longer than {2 * self.timeout:g} s to arrive.")
            return reply.status_code, reply.headers, b"".join(parts)

    @contextlib.contextmanager
    def flight(self) -> Iterator[float]:
        """Counts the time of one request, and the time in which there is any."""
        started = time.monotonic()
        with self.lock:
            if not self.flying:
                self.took_off = started
            self.flying += 1
        try:
            yield started
        finally:
            now = time.monotonic()
            with self.lock:
                self.flying -= 1
                self.bill.waited += now - started
                if not self.flying:
                    self.bill.under_way += now - self.took_off

    def patience(self, retry_after: str | None, status: int, url: str) -> float:
        """Seconds the server wants. A 429 speaks to all requests of this client, so it closes the gate."""
        if retry_after is None:
            return 0.0
        seconds = parse_retry_after(retry_after)
        if seconds > LONGEST_OBEDIENCE:
            raise TargetError(f"{url} answered {status} and wants to be asked again only after {seconds:.0f} s; "
                              f"run again then.")
        if status == 429:
            self.gate.close_for(seconds)
        return seconds

    def send(self, rows: int, *, again: bool) -> None:
        self.count(sent=rows, requests=1, repeated=int(again))
        with self.lock:
            self.on_sent(rows)

    def lose(self, rows: int, *, charge: bool = True) -> None:
        self.count(lost=rows)
        if charge:
            with self.lock:
                self.on_lost(rows)

    def refuse(self, rows: int) -> None:
        self.count(refused=rows)
        with self.lock:
            self.on_sent(-rows)

    def count(self, **more: float) -> None:
        with self.lock:
            for name, value in more.items():
                setattr(self.bill, name, getattr(self.bill, name) + value)


def ignore(rows: int) -> None:
    """The hook of a source whose rows nobody else counts."""


def parse_retry_after(text: str) -> float:
    """Seconds, from '3' or from an HTTP date; what cannot be read asks for nothing."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return seconds if 0 <= seconds < float("inf") else 0.0


def refusal(status: int, body: bytes, url: str, headers: Mapping[str, str], rows: int) -> Exception:
    from foldline.oracles.endpoint_wire import parse_json
    try:
        said = parse_json(body)
    except BadAnswer:
        said = body[:200].decode("utf-8", "replace")
    detail = said.get("detail") if isinstance(said, dict) else None
    if isinstance(detail, dict) and detail.get("code") == "query_budget":
        used, budget = detail.get("used"), detail.get("budget")
        if isinstance(used, int) and isinstance(budget, int):
            return BudgetExhausted(rows, used, budget)          # the server's limit, not the caller's
    if 300 <= status < 400:
        return TargetError(f"{url} redirects to {headers.get('location', 'nowhere')}. Redirects are not followed, "
                           f"since headers may hold secrets: name the final address.")
    advice = {401: " Is the API key right and set?", 403: " Is this key allowed to ask this?",
              404: " Is the path right?", 413: " Lower rows_per_request."}.get(status, "")
    words = str(said if detail is None else detail)[:300].rstrip(".")
    return TargetError(f"{url} refused with status {status}: {words}.{advice}")


def why(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
