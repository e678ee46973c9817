"""The report as one HTML file: no script, no network, nothing executed.

The content policy allows one stylesheet (by its hash) and embedded images, nothing else; every string is escaped by
jinja2, links only to https. Blurring and revealing pictures is done by CSS alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from foldline.reports.document import DefenceRow, Document, Severity, redacted
from foldline.reports.figures import draw

STATES = {"shown": "shown", "not-shown": "not shown at this budget", "incomplete": "incomplete"}
EVIDENCE = {"certificate": "Certificate:", "null": "Null:", "interval": "Interval:", "measurement": "Measured:"}
CODES = {"ok": "Done", "share": "Stopped at its share", "budget": "Budget used up", "time": "Time used up",
         "skipped": "Not tried", "failed": "Failed"}
GROUPS = {"none": "As it is", "answers": "Answers changed", "access": "Access limited",
          "training": "Trained differently"}


def render_html(document: Document, *, redact: bool = False) -> str:
    doc = redacted(document) if redact else document
    css = read("report.css")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(number=number, thousands=thousands, money=money, anchor=anchor, weblink=weblink,
                               words=lambda s: str(s).replace("_", " "))
    by_id = {f.id: f for f in doc.figures}
    cells = [(row, defence_cells(row)) for row in doc.defences.rows]
    shown = [any(c[i][0] != "" for _, c in cells) for i in range(len(COLUMNS))]
    groups = [(title, [{"name": r.name, "description": r.description, "status": r.status,
                        "cells": [(text, right, show, head) for (text, right), show, (head, _) in
                                  zip(c, shown, COLUMNS, strict=True)]}
                       for r, c in cells if r.group == group])
              for group, title in GROUPS.items() if any(r.group == group for r, _ in cells)]
    used = {g for m in doc.methods for g in m.figures} | {doc.hero}
    page = environment.from_string(read("report.html.j2")).render(
        doc=doc, css=Markup(css), csp=policy(css), hero=by_id.get(doc.hero or ""), by_id=by_id,
        titles={f.id: f.title for f in doc.figures}, states=STATES, evidence=EVIDENCE, codes=CODES,
        svg={f.id: Markup(draw(f)) for f in doc.figures if f.kind != "pictures"},
        tally=[(s, n) for s in reversed(Severity)
               if (n := sum(f.severity == s and f.state != "not-shown" for f in doc.findings))],
        columns=[("defence", False, True),
                 *((head, right, show) for (head, right), show in zip(COLUMNS, shown, strict=True))],
        defence_groups=groups, figures_of_defences=[f for f in doc.figures if f.id not in used])
    return page


COLUMNS = [("samples recovered", True), ("clearly (> 0.9)", True), ("by chance", True), ("span found", True),
           ("rows used", True), ("exact copy off by", True), ("student agrees", True), ("accuracy", True),
           ("decisions that change", True), ("answers move by", True), ("explanations turn by", True)]


def defence_cells(r: DefenceRow) -> list[tuple[str, bool]]:
    def percent(v: float | None) -> str:
        return "" if v is None else f"{100 * v:.1f} %"
    return [("" if r.recovered is None else f"{r.recovered} of {r.of}", True),
            ("" if r.clear is None else str(r.clear), True), ("" if r.null is None else str(r.null), True),
            ("" if r.rank is None else str(r.rank), True), ("" if r.rows is None else thousands(r.rows), True),
            ("" if r.extraction_rows is None else
             "no copy" if r.extraction_error is None else number(r.extraction_error, 2), True),
            (percent(r.imitation), True), (percent(r.accuracy), True), (percent(r.decisions_changed), True),
            ("" if r.output_change is None else number(r.output_change, 2), True),
            ("" if r.explanation_change is None else number(r.explanation_change, 2), True)]


def policy(css: str) -> str:
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def read(name: str) -> str:
    return files("foldline.reports").joinpath("templates", name).read_text(encoding="utf-8")


def number(value: Any, digits: int = 3) -> str:
    if value is None:
        return "none"
    if isinstance(value, float) and value != value:
        return "not a number"
    if float(value).is_integer() and abs(value) < 1e9:
        return thousands(int(value))
    return f"{value:.{digits}g}"


def thousands(value: int) -> str:
    return f"{value:,}"


def money(value: float | None, currency: str) -> str:
    return "" if value is None else f"{value:.2f} {currency}".strip()


def anchor(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", text)


def weblink(url: str) -> str:
    """Only https leaves the page; anything else becomes a link to nowhere."""
    return url if url.startswith("https://") else "#"
