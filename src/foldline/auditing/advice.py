"""What the table of defences says together: which stop the attacks, which do not, and the query limit that follows."""

from __future__ import annotations

from foldline.auditing.defences import DEFENCES
from foldline.auditing.session import Outcome, Session
from foldline.reports.document import Curves, DefenceRow, Defences, Series


def summary(session: Session, outcomes: list[Outcome]) -> Defences:
    rows = [o.row for o in outcomes if o.row is not None]
    if not rows:
        return Defences()
    none = next((r for r in rows if r.group == "none"), None)
    advice = advise(rows, none)
    limit, why = query_limit(session, rows)
    return Defences(rows=rows, advice=advice, query_limit=limit, query_limit_why=why)


def budget_figure(rows: list[DefenceRow]) -> Curves | None:
    """What leaks against the explanations a client gets, as far as query limits were tried."""
    names = {d.title for d in DEFENCES.values() if d.budget_share is not None}
    points = sorted((r for r in rows if (r.name in names or r.group == "none") and r.rows and r.recovered is not None),
                    key=lambda r: r.rows or 0)
    if len(points) < 3:
        return None
    x = [float(r.rows or 0) for r in points]
    return Curves(
        id="defence-budget", title="What leaks against the explanations given", x_label="explanations per client",
        y_label="training samples", alt="The number of recovered samples grows with the explanations given.",
        series=[Series(name="recovered", x=x, y=[float(r.recovered or 0) for r in points]),
                Series(name="of these clearly (> 0.9)", x=x, y=[float(r.clear or 0) for r in points]),
                Series(name="by chance", x=x, y=[float(r.null or 0) for r in points])],
        caption="Training samples recovered when a client is cut off after so many explanations, and what unseen "
                "samples would score as guesses.")


def advise(rows: list[DefenceRow], none: DefenceRow | None) -> list[str]:
    if none is None or not none.recovered:
        return []
    before = none.recovered
    said = []
    stops = [r for r in rows if r.group != "none" and r.recovered is not None and r.recovered <= max(1, r.null or 0)]
    fails = [r for r in rows if r.group != "none" and r.recovered is not None and r.recovered >= before / 2]
    if stops:
        said.append("No more than chance was recovered behind: " + "; ".join(r.name for r in stops) + ". These attacks "
                    "at this budget; a stronger one may get further.")
    if fails:
        said.append("Half or more of what was recovered without a defence still was behind: "
                    + "; ".join(r.name for r in fails) + ".")
    return said


def query_limit(session: Session, rows: list[DefenceRow]) -> tuple[int | None, str]:
    """The largest number of rows at which no more than chance was recovered, as far as it was tried."""
    span = session.outcomes.get("span")
    names = {d.title for d in DEFENCES.values() if d.budget_share is not None}
    tried = sorted((r for r in rows if r.name in names and r.rows), key=lambda r: r.rows or 0)
    if span is None or not span.method.status.ok or not tried:
        return None, ""
    whole = f"The attack took {span.method.rows} rows."
    leaks = "; ".join(f"{r.recovered or 0} of {r.of} were recovered with {r.rows} rows, {r.null or 0} by chance"
                      for r in tried if r.of)
    enough = [r for r in tried if r.recovered is not None and r.recovered <= max(1, r.null or 0)]
    tail = f" It does not stop copies: a student took {student_rows(session)} rows." if student_rows(session) else ""
    together = " Clients who work together count as one."
    if not enough:
        return None, f"{whole} {leaks}: no limit that was tried kept it to chance, so none is recommended.{tail}"
    return enough[-1].rows, f"{whole} {leaks}.{together}{tail}"


def student_rows(session: Session) -> int:
    found = session.outcomes.get("imitate")
    return found.method.rows if found is not None else 0
