"""One audit under way: metered oracles over a transcript, named random streams, and stages that survive a kill.

A finished stage is one JSON file in the run folder. After a kill, finished stages are read back, and what a later
stage needs of an earlier one (a span, say) is computed again from the transcript without asking the target anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from foldline.auditing.defences import DEFENCES
from foldline.auditing.spec import AuditFile
from foldline.auditing.subjects import KINDS, Subject
from foldline.errors import FoldlineError, Stopped
from foldline.oracles.endpoint_calls import Bill
from foldline.oracles.ledger import Ledger, Share
from foldline.oracles.protocols import GradientOracle, Kind, LabelOracle, Oracle, Source, ValueOracle
from foldline.oracles.transcript import Run, Transcript
from foldline.oracles.wrappers import Relay
from foldline.randomness import Streams, generator
from foldline.reports.document import DefenceRow, Figure, Finding, LedgerRow, Method, Part
from foldline.reports.document import Status as PlainStatus
from foldline.results import Progress, Status, silent

FACES: dict[str, type[Oracle]] = {"values": ValueOracle, "gradients": GradientOracle, "labels": LabelOracle}
ASKED = {"values": "values", "gradients": "explanations", "labels": "labels"}


WIRE = "wire.jsonl"


class Outcome(Part):
    """What a stage leaves behind; severity is decided when the report is put together."""

    method: Method
    findings: list[Finding] = Field(default_factory=list)
    figures: list[Figure] = Field(default_factory=list)
    ledger: list[LedgerRow] = Field(default_factory=list)
    budget_before: int | None = None
    row: DefenceRow | None = None


@dataclass(frozen=True)
class Estimate:
    """About `rows`, never more than `most`."""

    rows: int
    seconds: float
    note: str = ""
    most: int | None = None                                 # None: only the audit's budget sets an end
    exact: bool = False                                     # unless a budget ends before

    @classmethod
    def exactly(cls, rows: int, seconds: float, note: str) -> Estimate:
        return cls(rows, seconds, note, rows, True)

    @property
    def said(self) -> str:
        return f"{self.rows:,}" if self.exact else f"~{self.rows:,}"

    @property
    def said_most(self) -> str:
        return "budget" if self.most is None else f"{self.most:,}"


@dataclass(frozen=True)
class Stage:
    """`attack` asks and never sees the owner's data; `tell` judges its result and puts it into words and figures."""

    name: str
    title: str
    subject: str                                            # which of the session's subjects
    estimate: Callable[[Session], Estimate]
    attack: Callable[[Session], Any]
    tell: Callable[[Session, Any], Outcome]


class OutOfTime(Relay):
    """A source that stops asking when the audit's time is over."""

    def __init__(self, source: Source, deadline: float | None) -> None:
        super().__init__(source)
        self.deadline = deadline

    def answer(self, x: Tensor) -> Tensor:
        self.look()
        return self.source.answer(x)

    def look(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Stopped("The audit's budget of seconds is used up; nothing more was asked.")


class OutOfTimeInParts(OutOfTime):
    """The same over a source that answers request by request, so that a transcript keeps each as it arrives."""

    def __init__(self, source: Any, deadline: float | None) -> None:
        super().__init__(source, deadline)
        self.inner = source

    @property
    def on_sent(self) -> Callable[[int], None]:
        found: Callable[[int], None] = self.inner.on_sent
        return found

    @on_sent.setter
    def on_sent(self, note: Callable[[int], None]) -> None:
        self.inner.on_sent = note

    def answer_parts(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        self.look()
        for start, block in self.inner.answer_parts(x):
            yield start, block
            self.look()


def until(deadline: float | None, source: Source) -> Source:
    return OutOfTimeInParts(source, deadline) if hasattr(source, "answer_parts") else OutOfTime(source, deadline)


@dataclass
class Session:
    audit: AuditFile
    subjects: Mapping[str, Subject]
    run: Run | None
    budget: int | None = None
    deadline: float | None = None
    progress: Progress = silent
    results: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    stages: dict[str, Stage] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    replaying: Ledger | None = None
    asked: dict[tuple[str, str], int] = field(default_factory=dict)
    current: str = ""
    bills: list[Bill] = field(default_factory=list)         # of the HTTP sources that the present stage opened

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.budget)
        self.streams = Streams(generator(self.audit.seed))

    def rng(self, name: str) -> torch.Generator:
        return self.streams(name)

    @property
    def main(self) -> Subject:
        return self.subjects["main"]

    def dim(self, subject: str = "main") -> int:
        chosen = self.subjects[subject]
        return chosen.open(KINDS[next(a for a in chosen.access if a in KINDS)]).dim

    def oracle(self, access: str, subject: str = "main", *, most: int | None = None, purpose: str = "") -> Any:
        """A metered oracle for the stage that runs now; its answers are kept under the stage's name and the purpose."""
        kind = KINDS[access]
        source = self.opened(self.subjects[subject], kind)
        assert self.run is not None
        kept = Transcript(source, self.run, "/".join(filter(None, [self.current, subject, kind, purpose])))
        return FACES[access](kept, Counted(self.purse(most), self.asked, (subject, access)))

    def purse(self, most: int | None) -> Ledger:
        """The audit's ledger (or that of the stage which is computed again), or a part of it."""
        ledger = self.replaying if self.replaying is not None else self.ledger
        return ledger if most is None or (ledger.remaining is not None and ledger.remaining <= most) else \
            Share(ledger, most)

    @property
    def left(self) -> int | None:
        """The budget less the rows used. Rows that the network lost are left out: what a stage asks must not depend on
        them."""
        ledger = self.replaying if self.replaying is not None else self.ledger
        return None if ledger.budget is None else ledger.budget - ledger.used

    def opened(self, subject: Subject, kind: Kind) -> Source:
        source = subject.open(kind)
        inner: Any = source
        while inner is not None and not hasattr(inner, "caller"):
            inner = getattr(inner, "source", None)
        if inner is not None:
            self.bills.append(inner.caller.bill)
        return until(self.deadline, source)

    def note_wire(self, stage: str) -> None:
        """What crossed the network for a stage, into the run folder: retries differ from run to run, results do not."""
        assert self.run is not None
        found = {f.name: sum(getattr(b, f.name) for b in self.bills) for f in fields(Bill)}
        self.bills.clear()
        if found["requests"]:
            with (self.run.folder / WIRE).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"stage": stage, **found}) + "\n")

    def oracle_over(self, subject: Subject, access: str, purpose: str, *, billed: bool, budget: int | None) -> Any:
        """An oracle over a subject of a stage's own making, such as the target behind a defence.

        What is not billed is the owner's own copy: its answers cost nothing and are not kept.
        """
        source = self.opened(subject, KINDS[access])
        if not billed:
            return FACES[access](source, Ledger(budget))
        assert self.run is not None
        kept = Transcript(source, self.run, f"{self.current}/{purpose}/{KINDS[access]}")
        return FACES[access](kept, Counted(self.purse(budget), self.asked, ("main", access)))

    def part(self, name: str, make: Callable[[], tuple[Tensor, Status]]) -> tuple[Tensor, Status]:
        """A part of a long stage: computed once for the run folder, and after a kill read back with what it asked."""
        assert self.run is not None
        path = self.run.folder / "parts" / f"{self.current}-{name.replace(' ', '-')}.safetensors"
        if path.exists():
            with safe_open(path, "pt") as file:
                said = json.loads(file.metadata()["part"])
                for subject, access, rows in said["asked"]:
                    Counted(self.purse(None), self.asked, (subject, access)).charge(rows)
                return file.get_tensor("found"), Status(said["code"], said["message"], tuple(said["notes"]))
        before = dict(self.asked)
        found, status = make()
        asked = [[*who, n - before.get(who, 0)] for who, n in self.asked.items() if n > before.get(who, 0)]
        said = {"asked": asked, "code": status.code, "message": status.message, "notes": status.notes}
        write_whole(path, save({"found": found.contiguous()}, {"part": json.dumps(said)}))
        return found, status

    def result(self, name: str) -> Any:
        """What a stage's attack found; computed once per process."""
        if name not in self.results:
            before, replaying, asked = self.current, self.replaying, self.asked
            if name in self.outcomes:                       # finished in an earlier life: its answers are all kept
                self.replaying, self.asked = Ledger(self.outcomes[name].budget_before), {}
            self.current = name
            try:
                self.results[name] = self.stages[name].attack(self)
            finally:
                self.current, self.replaying, self.asked = before, replaying, asked
        return self.results[name]

    def perform(self, stage: Stage) -> Outcome:
        assert self.run is not None
        path = self.run.folder / "stages" / f"{stage.name}.json"
        self.stages[stage.name] = stage
        if path.exists():
            outcome = Outcome.model_validate_json(path.read_text("utf-8"))
            self.ledger.charge(sum(r.rows for r in outcome.ledger))
            self.outcomes[stage.name] = outcome
            return outcome
        started, budget_before = time.monotonic(), self.ledger.remaining
        self.asked = {}
        result = self.result(stage.name)
        outcome = stage.tell(self, result)
        price = {name: s.price for name, s in self.subjects.items()}
        rows = [LedgerRow(stage=stage.title, subject=self.subjects[s].name, kind=ASKED[a], rows=n,
                          money=n * price[s] if self.priced else None) for (s, a), n in self.asked.items()]
        outcome = outcome.model_copy(update={"ledger": rows, "budget_before": budget_before})
        self.seconds[stage.name] = time.monotonic() - started
        self.note_wire(stage.name)
        write_whole(path, outcome.model_dump_json(indent=1))
        self.outcomes[stage.name] = outcome
        return outcome

    @property
    def priced(self) -> bool:
        return any(s.price > 0 for s in self.subjects.values())


class Counted(Ledger):
    """The audit's ledger, seen by one oracle: charges the whole, and remembers who asked what."""

    def __init__(self, whole: Ledger, asked: dict[tuple[str, str], int], who: tuple[str, str]) -> None:
        super().__init__(whole.remaining)
        self.whole, self.asked, self.who = whole, asked, who

    @property
    def remaining(self) -> int | None:
        return self.whole.remaining

    def charge(self, rows: int) -> None:
        self.whole.charge(rows)
        self._used += rows
        self.asked[self.who] = self.asked.get(self.who, 0) + rows

    def lose(self, rows: int) -> None:
        self.whole.lose(rows)
        self._lost += rows


def write_whole(path: Path, content: str | bytes) -> None:
    """All of the file or none of it, also when the machine stops in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def wire(folder: Path) -> Bill:
    """The sum of what all finished stages sent and lost, over every life of the folder."""
    total = Bill()
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / WIRE).read_text("utf-8").splitlines():
            found = json.loads(line)
            for f in fields(Bill):
                setattr(total, f.name, getattr(total, f.name) + found[f.name])
    return total


def plain_status(status: Status) -> PlainStatus:
    return PlainStatus(ok=status.ok, code=status.code, message=status.message, notes=list(status.notes))


def failed(stage: Stage, error: FoldlineError) -> Outcome:
    """A stage that could not be carried out is part of the report, not the end of the audit."""
    code = {"Stopped": "time", "BudgetExhausted": "budget"}.get(type(error).__name__, "failed")
    status = PlainStatus(ok=False, code=code, message=str(error))
    defence = DEFENCES.get(stage.name.removeprefix("defence-")) if stage.name.startswith("defence-") else None
    row = None if defence is None else DefenceRow(name=defence.title, group=defence.group,
                                                  description=defence.description, status=f"Not tried. {error}")
    return Outcome(method=Method(id=stage.name, title=stage.title, explains="", status=status, rows=0), row=row)
