"""The report as data: what the JSON file holds, and what every other form of the report is drawn from.

`schema_version` follows semantic versioning of the JSON: a new optional field raises the second number, anything a
reader could trip over raises the first. Everything outside `run` is a function of the target, the audit file and the
seed; times, hosts and retries live in `run`, so that two runs can be compared by `comparable()`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = "1.1"
SCHEMA_ID = "urn:foldline:report:1.1"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null", allow_inf_nan=True)


class Severity(StrEnum):
    info = "info"
    low = "low"
    medium = "medium"
    high = "high"
    critical = "critical"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


class Reference(Part):
    """One entry of a public catalogue of threats, in the version it was read from."""

    framework: str
    version: str
    id: str
    name: str
    url: str


class Evidence(Part):
    kind: Literal["certificate", "null", "interval", "measurement"]
    text: str


class Assumption(Part):
    """Something a method's theory needs; `held` is None where it could not be checked from outside."""

    text: str
    held: bool | None
    measured: str = ""


class Cost(Part):
    rows: int = Field(description="rows asked of the target, explanations and values alike")
    asked: str = Field(description="what was asked for, in words")
    money: float | None = None
    currency: str = ""


class Finding(Part):
    id: str
    title: str
    state: Literal["shown", "not-shown", "incomplete"]
    severity: Severity
    why_severity: str = ""
    what: str
    limits: str = Field(default="", description="what was not shown at this budget; never a promise that nothing leaks")
    evidence: list[Evidence] = []
    cost: Cost
    assumptions: list[Assumption] = []
    fixes: list[str] = []
    references: list[Reference] = []
    numbers: dict[str, float | None] = {}
    figures: list[str] = []
    method: str = ""


class Picture(Part):
    """A small image: PNG in base64, empty when the report is redacted."""

    png: str = ""
    note: str = ""
    alt: str = ""


class PictureRow(Part):
    label: str
    pictures: list[Picture]
    hint: str = ""


class Series(Part):
    name: str
    x: list[float]
    y: list[float | None]
    style: Literal["line", "points", "step", "dashed"] = "line"


class FigurePart(Part):
    id: str
    title: str
    caption: str
    alt: str


class Pictures(FigurePart):
    """Rows of images under each other: training images, what was recovered, the null."""

    kind: Literal["pictures"] = "pictures"
    private: bool = True
    rows: list[PictureRow]
    size: tuple[int, int]


class Spectrum(FigurePart):
    kind: Literal["spectrum"] = "spectrum"
    values: list[float]
    rank: int
    floor: float | None = None
    marks: dict[str, float] = Field(default={}, description="vertical lines worth naming, by position")


class Curves(FigurePart):
    kind: Literal["curves"] = "curves"
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    series: list[Series]


class Folds(FigurePart):
    """A piecewise-linear function along a line, with the folds that were found."""

    kind: Literal["folds"] = "folds"
    t: list[float]
    f: list[float]
    folds: list[float]


class Scores(FigurePart):
    """Two samples of scores on one axis: the real ones and the null, with the threshold between."""

    kind: Literal["scores"] = "scores"
    x_label: str
    groups: list[Series] = Field(description="x holds the scores; y is unused")
    threshold: float | None = None
    threshold_label: str = ""


Figure = Annotated[Pictures | Spectrum | Curves | Folds | Scores, Field(discriminator="kind")]


class Status(Part):
    ok: bool
    code: str
    message: str
    notes: list[str] = []


class Method(Part):
    """One stage of the audit: what ran, how it ended, what it asked."""

    id: str
    title: str
    explains: str = Field(description="what it does, for a reader who has not read the paper")
    status: Status
    rows: int
    numbers: dict[str, float | str | None] = {}
    certificate: str = ""
    figures: list[str] = []


class LedgerRow(Part):
    stage: str
    subject: str
    kind: str
    rows: int
    money: float | None = None


class Ledger(Part):
    rows: list[LedgerRow] = []
    total: int = 0
    budget: int | None = None
    money: float | None = None
    money_budget: float | None = None
    currency: str = ""


class DefenceRow(Part):
    """One defence: what the attacks still get behind it, and what honest users lose."""

    name: str
    group: Literal["none", "answers", "access", "training"]
    description: str
    rows: int | None = None
    rank: int | None = None
    recovered: int | None = None
    clear: int | None = Field(default=None, description="recovered with a correlation above 0.9")
    of: int | None = None
    null: int | None = Field(default=None, description="unseen images matched equally well: the same count by chance")
    extraction_error: float | None = None
    extraction_rows: int | None = None
    imitation: float | None = None
    accuracy: float | None = None
    output_change: float | None = None
    explanation_change: float | None = None
    decisions_changed: float | None = Field(default=None, description="share of honest inputs decided otherwise than "
                                                                      "by the model as it is")
    status: str = ""


class Defences(Part):
    rows: list[DefenceRow] = []
    advice: list[str] = []
    query_limit: int | None = None
    query_limit_why: str = ""


class Target(Part):
    name: str
    address: str
    access: list[str]
    dim: int | None = None
    outputs: int | None = None
    facts: dict[str, str] = {}


class Reproduce(Part):
    command: str
    seed: int
    audit_file: str
    audit_file_sha256: str
    versions: dict[str, str] = {}
    threads: int | None = None


class Run(Part):
    """What differs between two runs of the same audit; left out of comparisons."""

    started: str = ""
    finished: str = ""
    seconds: float = 0.0
    stage_seconds: dict[str, float] = {}
    machine: str = ""
    rows_replayed: int = 0
    rows_sent: int = 0
    rows_lost: int = Field(default=0, description="sent and perhaps billed, but no whole reply arrived: asked again")
    rows_refused: int = Field(default=0, description="the target said that it did not answer them: asked again")
    requests: int = Field(default=0, description="HTTP requests of finished stages")
    retries: int = Field(default=0, description="requests among them that were repeated")
    resumed: int = 0


class Document(Part):
    schema_version: str = SCHEMA_VERSION
    kind: Literal["foldline-report"] = "foldline-report"
    tool: str = "foldline"
    tool_version: str
    title: str
    headline: str = Field(description="one sentence for a reader who will read nothing else")
    lead: str = Field(default="", description="two or three sentences more")
    hero: str | None = Field(default=None, description="id of the first picture")
    target: Target
    authorisation: str
    complete: bool = True
    redacted: bool = False
    findings: list[Finding]
    methods: list[Method]
    figures: list[Figure] = []
    ledger: Ledger
    defences: Defences = Defences()
    reproduce: Reproduce
    run: Run = Run()

    @property
    def worst(self) -> Severity:
        shown = [f.severity for f in self.findings if f.state != "not-shown"]
        return max(shown, key=lambda s: s.rank, default=Severity.info)

    def figure(self, id: str) -> Any:
        return next((f for f in self.figures if f.id == id), None)

    def comparable(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"run"})


def redacted(document: Document) -> Document:
    """The same report without a single pixel of a private picture."""
    def blank(figure: Any) -> Any:
        if not isinstance(figure, Pictures) or not figure.private:
            return figure
        rows = [row.model_copy(update={"pictures": [p.model_copy(update={"png": ""}) for p in row.pictures]})
                for row in figure.rows]
        return figure.model_copy(update={"rows": rows})
    return document.model_copy(update={"redacted": True, "figures": [blank(f) for f in document.figures]})


def schema() -> dict[str, Any]:
    """The JSON schema that is published as docs/schema/report-1.1.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID,
            **Document.model_json_schema(mode="serialization")}
