"""The audit from end to end: subjects, stages, findings, report files."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import yaml

from foldline import __version__
from foldline.auditing import demo
from foldline.auditing.headline import headline
from foldline.auditing.plan import Planned, budget_rows, plan
from foldline.auditing.session import Outcome, Session, failed, wire
from foldline.auditing.severity import rated
from foldline.auditing.spec import AuditFile, parse_audit_file, read_audit_file
from foldline.auditing.subjects import Subject, subject_of
from foldline.errors import BadInput, BudgetExhausted, FoldlineError, Stopped, TargetError
from foldline.oracles.transcript import open_run
from foldline.reports.document import Document, Finding, Ledger, Reproduce, Run, Target
from foldline.reports.files import write_report
from foldline.results import Progress, silent

Watch = Callable[[str, Planned, Outcome | None], None]
"""watch(event, stage, outcome): start and end of every stage, for a live display."""


@dataclass(frozen=True, eq=False)
class Audit:
    """What `fl.audit` returns: the report as data, and where its files are."""

    document: Document
    folder: Path
    files: dict[str, Path]

    @property
    def findings(self) -> list[Finding]:
        return self.document.findings

    @property
    def complete(self) -> bool:
        return self.document.complete

    def to_dict(self) -> dict[str, Any]:
        return self.document.model_dump(mode="json")


def audit(spec_or_path: AuditFile | dict[str, Any] | str | Path | None = None, out: str | Path = "report", *,
          authorised: str | None = None, progress: Progress = silent, watch: Watch | None = None,
          planned: Callable[[Session, list[Planned]], None] | None = None, seed: int | None = None,
          redact: bool | None = None, text: str | None = None) -> Audit:
    """Run an audit (an audit file, its content, a target string, or None for the embedded default) into `out`.

    The same call on the same folder resumes: finished stages are read back, and no row is asked twice.
    """
    spec, written_text = resolved(spec_or_path, authorised=authorised, seed=seed)
    text = written_text if text is None else text
    folder = Path(out)
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    # A target that cannot be opened leaves no folder behind: the next call may use the same one.
    opened = None if spec.target == demo.TARGET else open_subject(spec)
    run = open_run(folder / "run", target=spec.target, seed=spec.seed, audit_file=spec.digest()[:16],
                   foldline=__version__)
    count_start(run.folder)
    try:
        with one_thread(), subjects(spec, opened, run.folder, progress) as found, declared(spec):
            session = make_session(spec, found, run, progress)
            steps = plan(session)
            if planned is not None:
                planned(session, steps)
            complete = perform(session, steps, watch or (lambda *_: None))
            document = put_together(session, steps, spec, text, complete)
        took = time.monotonic() - clock
        document = document.model_copy(update={"run": Run(
            started=started.isoformat(sep=" ", timespec="seconds"),
            finished=datetime.datetime.now(datetime.UTC).isoformat(sep=" ", timespec="seconds"), seconds=round(took, 1),
            stage_seconds={k: round(v, 2) for k, v in session.seconds.items()},
            machine=f"{platform.machine()}, {os.cpu_count()} processors",
            rows_sent=run.sent, rows_lost=run.lost, rows_refused=wire(run.folder).refused,
            rows_replayed=max(0, document.ledger.total - run.sent), requests=wire(run.folder).requests,
            retries=wire(run.folder).repeated, resumed=starts(run.folder) - 1)})
    finally:
        run.close()
    written = write_report(document, folder, redact=spec.redact if redact is None else redact)
    return Audit(document, folder, written)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums depend on the number of threads, and a report should not depend on the machine. It is faster, too: matrices
    of 50 rows lose more to the hand-over than they gain (the demo: 16 to 30 s of unmixing with two threads, 8 to 19
    with one). OMP_NUM_THREADS says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if "OMP_NUM_THREADS" in os.environ else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resolved(given: AuditFile | dict[str, Any] | str | Path | None, *, authorised: str | None = None,
             seed: int | None = None) -> tuple[AuditFile, str]:
    if given is None:
        text = files("foldline.auditing").joinpath("demo.yaml").read_text("utf-8")
        spec = parse_audit_file(text, "demo.yaml", Path())
    elif isinstance(given, AuditFile):
        spec, text = given, yaml.safe_dump(given.model_dump(mode="json", exclude_defaults=True), sort_keys=False)
    elif isinstance(given, dict):
        text = yaml.safe_dump(given, sort_keys=False)
        spec = parse_audit_file(text, "the audit", Path())
    elif is_audit_file(given):
        spec, text = read_audit_file(given)
    else:
        text = yaml.safe_dump({"version": 1, "name": str(given), "target": str(given)}, sort_keys=False)
        spec = parse_audit_file(text, "the audit", Path())
    changes = {k: v for k, v in (("authorised", authorised), ("seed", seed)) if v is not None}
    return spec.model_copy(update=changes), text


def is_audit_file(given: str | Path) -> bool:
    """A YAML file that has a target: is an audit file; one that has a url: describes an API, and is a target."""
    if isinstance(given, Path):
        return True
    if Path(given).suffix not in (".yaml", ".yml") or given.startswith("http:"):
        return False
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return not any(line.startswith("url:") for line in Path(given).read_text("utf-8").splitlines())
    return True


def open_subject(spec: AuditFile) -> Subject:
    with declared(spec):
        return subject_of(spec)


@contextlib.contextmanager
def subjects(spec: AuditFile, opened: Subject | None, folder: Path, progress: Progress) -> Iterator[dict[str, Subject]]:
    if opened is not None:
        yield {"main": opened}
        return
    with demo.demo_subjects(spec, folder, progress) as found:
        yield found


@contextlib.contextmanager
def declared(spec: AuditFile) -> Iterator[None]:
    """Inside, HTTP targets may be asked under the audit's statement; without one the endpoint refuses."""
    if spec.authorised is None:
        yield
        return
    from foldline.oracles.authorisation import authorised
    with authorised(spec.authorised):
        yield


def make_session(spec: AuditFile, found: dict[str, Subject], run: Any, progress: Progress) -> Session:
    rows, _ = budget_rows(spec, found["main"].price)
    deadline = None if spec.budget.seconds is None else time.monotonic() + spec.budget.seconds
    session = Session(spec, found, run, budget=rows, deadline=deadline, progress=progress)
    # What earlier lives of this folder sent and never got was billed all the same.
    session.ledger.lose(run.lost if session.ledger.remaining is None else min(run.lost, session.ledger.remaining))
    return session


def perform(session: Session, planned: list[Planned], watch: Watch) -> bool:
    """All stages in order; what one of them cannot do is told and the next begins. False: a budget ran out."""
    complete = True
    for step in planned:
        watch("start", step, None)
        try:
            outcome = session.perform(step.stage)
        except (Stopped, BudgetExhausted) as error:
            outcome = failed(step.stage, error)
        except TargetError:
            raise                                           # the target is gone: resume when it is back
        except (FoldlineError, BadInput) as error:
            outcome = failed(step.stage, error)
        session.outcomes[step.stage.name] = outcome
        complete &= outcome.method.status.code not in ("budget", "time")
        watch("end", step, outcome)
    return complete


def put_together(session: Session, planned: list[Planned], spec: AuditFile, text: str, complete: bool) -> Document:
    from foldline.auditing.advice import budget_figure, summary
    outcomes = [session.outcomes[p.stage.name] for p in planned]
    findings = sorted((rated(f, spec) for o in outcomes for f in o.findings),
                      key=lambda f: (f.state == "not-shown", -f.severity.rank))
    figures: list[Any] = [f for o in outcomes for f in o.figures]
    rows = [r for o in outcomes for r in o.ledger if r.kind]
    main = session.main
    defences = summary(session, outcomes)
    leak_curve = budget_figure(defences.rows)
    figures += [leak_curve] if leak_curve is not None else []
    said = headline(session, findings, figures, defences)
    total = sum(r.rows for r in rows)
    money = sum(r.money or 0.0 for r in rows) if session.priced else None
    return Document(
        tool_version=__version__, title="foldline audit", headline=said.sentence, lead=said.lead, hero=said.hero,
        target=Target(name=main.name, address=main.address, access=list(main.access), dim=session.dim(),
                      facts=main.facts),
        authorisation=spec.authorised or "A model in the auditor's own hands: no permission was needed.",
        complete=complete, findings=findings,
        methods=[o.method for p, o in zip(planned, outcomes, strict=True) if not p.stage.name.startswith("defence")],
        figures=figures, ledger=Ledger(rows=rows, total=total, budget=session.budget, money=money,
                                       money_budget=spec.budget.money, currency=spec.budget.currency),
        defences=defences,
        reproduce=Reproduce(command=command_of(spec), seed=spec.seed, audit_file=text, audit_file_sha256=spec.digest(),
                            versions=versions(), threads=torch.get_num_threads()))


def command_of(spec: AuditFile) -> str:
    if spec.target == demo.TARGET:
        return f"foldline audit --seed {spec.seed}"
    said = f" --i-am-authorised {shlex.quote(spec.authorised)}" if spec.authorised else ""
    return f"foldline audit audit.yaml --seed {spec.seed}{said}"


def versions() -> dict[str, str]:
    found = {"foldline": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "scipy", "scikit-learn"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def count_start(folder: Path) -> None:
    with (folder / "starts").open("a") as file:
        file.write(".")


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text())
