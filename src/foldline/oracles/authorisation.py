"""Who may ask somebody's API: nobody, until the caller has said in words why they may.

The words are kept and can be read later (`statements()`), since they belong in the report.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

from foldline.errors import NotAuthorised

VARIABLE = "FOLDLINE_AUTHORISED"

_said: ContextVar[tuple[str, ...]] = ContextVar("foldline_authorised", default=())


@contextlib.contextmanager
def authorised(statement: str) -> Iterator[str]:
    """HTTP targets opened inside may be asked. `statement` says by whose leave, in a sentence for the report."""
    token = _said.set((*_said.get(), checked(statement)))
    try:
        yield statement
    finally:
        _said.reset(token)


def statement() -> str | None:
    """What was said, innermost first: `authorised(...)`, else the environment variable FOLDLINE_AUTHORISED."""
    said = _said.get()
    return said[-1] if said else os.environ.get(VARIABLE, "").strip() or None


def required(explicit: str | None, url: str) -> str:
    """The statement under which `url` may be asked, or NotAuthorised."""
    said = checked(explicit) if explicit is not None else statement()
    if said is None:
        raise NotAuthorised(f"{url} is an HTTP target. Asking somebody's API needs their permission: pass "
                            f"--i-am-authorised \"by whom and when\", or set {VARIABLE}, or open it inside "
                            f"foldline.oracles.authorisation.authorised(...). What you say goes into the report.")
    return said


def checked(said: str) -> str:
    said = said.strip() if isinstance(said, str) else ""
    if not said:
        raise NotAuthorised("The statement of authorisation is empty: say by whose leave the target may be asked.")
    return said
