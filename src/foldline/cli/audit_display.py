"""The audit on a terminal: a live table of stages, rows and time; plain lines in a pipe; a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from foldline.cli.common import console
from foldline.cli.live import LiveDisplay

if TYPE_CHECKING:
    from rich.table import Table

    from foldline.auditing.plan import Planned
    from foldline.auditing.run import Audit
    from foldline.auditing.session import Outcome, Session
    from foldline.auditing.spec import AuditFile

COLOURS = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "green", "info": "blue"}


class Display(LiveDisplay):
    """with Display(spec) as d: audit(..., progress=d.progress, watch=d.watch, planned=d.planned)"""

    def __init__(self, spec: AuditFile) -> None:
        super().__init__()
        self.spec = spec
        self.stages: list[Planned] = []
        self.state: dict[str, tuple[str, str, float]] = {}          # name -> (mark, text, seconds)
        self.session: Session | None = None
        self.now, self.detail, self.began = "", "", time.monotonic()

    def planned(self, session: Session, stages: list[Planned]) -> None:
        self.session, self.stages = session, stages
        rows = sum(p.estimate.rows for p in stages)
        limit = "no limit" if session.budget is None else f"{session.budget:,}"
        self.line(f"{len(stages)} stages, about {rows:,} rows (budget: {limit})")

    def progress(self, stage: str, numbers: Mapping[str, float]) -> None:
        if stage != self.detail.partition("  ")[0] and not self.now:
            self.line(f"preparing: {stage}")
        self.detail = "  ".join([stage, *(f"{k} {v:,.4g}" for k, v in numbers.items())])

    def watch(self, event: str, step: Planned, outcome: Outcome | None) -> None:
        name = step.stage.name
        if event == "start":
            self.now, self.detail, self.began = name, "", time.monotonic()
            self.line(f"{step.stage.title} ...")
            return
        assert outcome is not None
        status = outcome.method.status
        took = time.monotonic() - self.began
        mark = "[green]done[/]" if status.ok else f"[yellow]{status.code}[/]"
        rows = sum(r.rows for r in outcome.ledger)
        self.state[name] = (mark, f"{rows:,}" if rows else "", took)
        first = outcome.findings[0].what.partition(". ")[0].rstrip(".") + "." if outcome.findings else \
            outcome.row.status if outcome.row is not None and outcome.row.status else status.message
        self.line(f"{step.stage.title}: {status.code}, {rows:,} rows, {took:.1f} s. {first}")

    def table(self) -> Table:
        from rich.markup import escape
        from rich.table import Table
        table = Table(title=escape(self.spec.name), title_justify="left", box=None, padding=(0, 2, 0, 0))
        for column in ("", "stage"):
            table.add_column(column)
        for column in ("rows", "seconds"):
            table.add_column(column, justify="right")
        table.add_column("")
        if not self.stages:
            waited = f"{time.monotonic() - self.started:.0f}"
            table.add_row("[cyan]...[/]", "preparing", "", waited, escape(self.detail))
        for step in self.stages:
            name, title = step.stage.name, escape(step.stage.title)
            if name in self.state:
                mark, rows, took = self.state[name]
                table.add_row(mark, title, rows, f"{took:.1f}", "")
            elif name == self.now:
                table.add_row("[cyan]now[/]", f"[bold]{title}[/]", "", f"{time.monotonic() - self.began:.0f}",
                              escape(self.detail))
            else:
                table.add_row("[dim]next[/]", f"[dim]{title}[/]", f"[dim]~{step.estimate.rows:,}[/]",
                              f"[dim]~{step.estimate.seconds:.0f}[/]", "")
        table.caption, table.caption_justify = self.footer(), "left"
        return table

    def footer(self) -> str:
        if self.session is None:
            return ""
        used, budget, deadline = self.session.ledger.used, self.session.budget, self.session.deadline
        rows = f"{used:,} rows asked" + (f" of {budget:,}" if budget is not None else "")
        left = sum(p.estimate.seconds for p in self.stages if p.stage.name not in self.state)
        time_left = f"about {left:.0f} s to go"
        if deadline is not None:
            time_left += f", {max(0.0, deadline - time.monotonic()):.0f} s allowed"
        return f"{rows} · {time_left}"


def show_plan(spec: AuditFile) -> None:
    """On stdout: stages, access, rows, seconds and money, before anything is asked."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from foldline.auditing.plan import planned_only
    found = planned_only(spec)
    table = Table(title=f"Plan: {escape(spec.name)}", title_justify="left")
    table.add_column("stage")
    for column in ("rows", "at most", "seconds"):
        table.add_column(column, justify="right")
    table.add_column("remark")
    for step in found.stages:
        e = step.estimate
        table.add_row(escape(step.stage.title), e.said, e.said_most, f"~{e.seconds:.0f}", escape(e.note))
    total = found.total
    table.add_section()
    table.add_row("in all", total.said, total.said_most, f"~{total.seconds:.0f}",
                  f"~{total.rows * found.price:.2f} {spec.budget.currency}" if found.price else "")
    out = Console(highlight=False)
    out.print(table)
    if found.budget is not None:
        verdict = "within" if total.rows <= found.budget else "MORE THAN"
        out.print(f"About {total.rows:,} rows: {verdict} the budget of {found.budget:,}, which is never crossed.")
    out.print("~ is an estimate; a number without it is what will be asked, unless a budget ends before. Nothing was "
              "asked.")


def summary(done: Audit) -> None:
    from rich.markup import escape
    from rich.table import Table
    out = console()
    table = Table(title=escape(done.document.headline), title_justify="left", title_style="bold")
    table.add_column("severity")
    table.add_column("finding")
    table.add_column("rows", justify="right")
    for f in done.findings:
        shown = f.state == "shown"
        table.add_row(f"[{COLOURS[f.severity]}]{f.severity}[/]" if shown else f"[dim]{f.state}[/]", escape(f.title),
                      f"{f.cost.rows:,}")
    out.print(table)
    size = done.files["html"].stat().st_size / 1e3
    large = f"{size / 1e3:.1f} MB" if size >= 1e3 else f"{size:.0f} kB"
    out.print(f"Report: {escape(str(done.files['html']))} ({large}), with JSON, SARIF and JUnit beside it. "
              f"{done.document.ledger.total:,} rows, {done.document.run.seconds:.0f} s.", soft_wrap=True)
