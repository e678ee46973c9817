"""How findings are put into words, the same way by every stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from foldline.auditing.frameworks import BY_FINDING
from foldline.auditing.session import ASKED, Session, Stage, plain_status
from foldline.reports.document import Assumption, Cost, Evidence, Finding, Method, Severity
from foldline.results import Result


def finding(session: Session, id: str, title: str, *, shown: bool, what: str, cost: Cost, incomplete: bool = False,
            limits: str = "", evidence: Sequence[Evidence] = (), assumptions: Sequence[Assumption] = (),
            fixes: Sequence[str] = (), numbers: Mapping[str, float | None], figures: Sequence[str] = ()) -> Finding:
    """Severity is decided later, by the rules (severity.py)."""
    state = "shown" if shown else "incomplete" if incomplete else "not-shown"
    return Finding.model_validate({
        "id": id, "title": title, "state": state, "severity": Severity.info, "what": what, "limits": limits,
        "evidence": list(evidence), "cost": cost, "assumptions": list(assumptions), "fixes": list(fixes),
        "references": BY_FINDING[id], "numbers": {k: finite(v) for k, v in numbers.items()}, "figures": list(figures),
        "method": session.current or id})


def method(stage: Stage, explains: str, result: Result, *, numbers: Mapping[str, Any], figures: Sequence[str],
           certificate: str = "") -> Method:
    return Method(id=stage.name, title=stage.title, explains=explains, status=plain_status(result.status),
                  rows=result.queries, numbers={k: finite(v) for k, v in numbers.items()}, certificate=certificate,
                  figures=list(figures))


def of_its_share(told: Method) -> Method:
    """A method that used up the part of the budget set aside for it has not ended the audit."""
    if told.status.code != "budget":
        return told
    why = f"The part of the budget set aside for it is used up. {told.status.message}"
    status = told.status.model_copy(update={"code": "share", "message": why})
    return told.model_copy(update={"status": status})


def cost(session: Session, asked: str = "", rows: int | None = None) -> Cost:
    """What this stage asked, or `rows` of the main target, and, where a row has a price, the money for it."""
    n = sum(session.asked.values()) if rows is None else rows
    paid = rows * session.main.price if rows is not None else \
        sum(k * session.subjects[s].price for (s, _), k in session.asked.items())
    money = paid if session.priced else None
    kinds = ", ".join(sorted({ASKED[a] for _, a in session.asked})) or "nothing new was asked"
    return Cost(rows=n, asked=asked or kinds, money=money, currency=session.audit.budget.currency)


def certificate(text: str) -> Evidence:
    return Evidence(kind="certificate", text=text)


def null(text: str) -> Evidence:
    return Evidence(kind="null", text=text)


def share_interval(hits: int, n: int, what: str, confidence: float = 0.95) -> Evidence:
    low, high = wilson(hits, n, confidence)
    return Evidence(kind="interval", text=f"{what}: {hits} of {n}, {hits / max(n, 1):.0%} "
                                          f"({confidence:.0%} interval {low:.0%} to {high:.0%}).")


def wilson(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share."""
    if n == 0:
        return 0.0, 1.0
    from scipy.stats import norm
    z = float(norm.ppf(0.5 + confidence / 2))
    p, z2 = hits / n, z * z
    middle, spread = p + z2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return max(0.0, (middle - spread) / (1 + z2 / n)), min(1.0, (middle + spread) / (1 + z2 / n))


def assumption(text: str, held: bool | None, measured: str = "") -> Assumption:
    return Assumption(text=text, held=held, measured=measured)


def finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
