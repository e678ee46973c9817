"""foldline audit: run what the access allows, and write a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foldline.cli.common import JsonOut, emit, say

LIMITS, REPORT = "Limits", "Report"
SEVERITIES = ("info", "low", "medium", "high", "critical")


def command(
    target: Annotated[str | None, typer.Argument(metavar="[AUDIT.YAML | TARGET]", help=(
        "An audit file, or any target string; left out: the embedded demo, from victim to report."))] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help=(
        "Where the report goes; the same command on the same folder resumes."))] = Path("report"),
    plan: Annotated[bool, typer.Option("--plan", help=(
        "Print what would run, its rows and seconds; ask nothing."))] = False,
    fail_on: Annotated[str | None, typer.Option("--fail-on", metavar="SEVERITY", rich_help_panel=REPORT, help=(
        f"Exit with 1 if a finding is at least this bad: {', '.join(SEVERITIES)}."))] = None,
    redact: Annotated[bool | None, typer.Option("--redact/--no-redact", rich_help_panel=REPORT, help=(
        "Leave every recovered image out of the report."))] = None,
    authorised: Annotated[str | None, typer.Option("--i-am-authorised", metavar="SENTENCE", help=(
        "By whose leave an HTTP target is asked; goes into the report."))] = None,
    budget: Annotated[int | None, typer.Option("--budget", min=0, rich_help_panel=LIMITS,
                                               help="Rows that may be asked; never crossed.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", rich_help_panel=LIMITS,
                                                  help="Time after which nothing more is asked.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Everything random follows from it.")] = None,
    json_out: JsonOut = None,
) -> None:
    """Attack a model as a stranger would and report what it gave away, how surely, and what helps.

    \b
    foldline audit                                    the embedded demo, about four minutes
    foldline audit audit.yaml --fail-on high          in CI: exit code 1 on high or critical findings
    foldline audit audit.yaml --plan                  what would run; nothing is asked
    foldline audit weights:model.safetensors --budget 2000
    foldline audit https://api.example.com --i-am-authorised "Jane Doe, owner, 2026-11-15"
    """
    from foldline.auditing.run import audit, resolved
    from foldline.cli.audit_display import Display, show_plan, summary
    from foldline.errors import BadInput
    from foldline.reports.document import Severity
    spec, text = resolved(target, authorised=authorised, seed=seed)
    changes = {k: v for k, v in (("queries", budget), ("seconds", seconds)) if v is not None}
    if seconds is not None and not seconds > 0:
        raise BadInput(f"--seconds must be positive, not {seconds:g}.")
    if changes:
        spec = spec.model_copy(update={"budget": spec.budget.model_copy(update=changes)})
    if fail_on is not None and fail_on not in SEVERITIES:
        raise BadInput(f"--fail-on is one of {', '.join(SEVERITIES)}, not {fail_on!r}.")
    threshold = Severity(fail_on) if fail_on is not None else spec.fail_on
    if plan:
        show_plan(spec)
        return
    with Display(spec) as display:
        done = audit(spec, out, text=text, progress=display.progress, watch=display.watch, redact=redact,
                     planned=display.planned)
    summary(done)
    if json_out is not None:
        emit(done.to_dict(), json_out)
    worst = done.document.worst
    if threshold is not None and worst.rank >= threshold.rank \
            and any(f.state == "shown" and f.severity.rank >= threshold.rank for f in done.findings):
        say(f"A finding is {worst}, at or above --fail-on {threshold}: exit code 1.")
        raise typer.Exit(1)
    if not done.complete:
        say("Incomplete: a budget ran out. What was found is in the report; a larger budget goes on from here "
            "in a new folder.")
        raise typer.Exit(3)
