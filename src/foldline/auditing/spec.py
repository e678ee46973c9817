"""The audit file: what may be attacked, how far, and what counts as bad. Every mistake in it is named with its line.

    version: 1
    name: our digit API
    target: http:digits.yaml          # any target string
    authorised: "Jane Doe, owner of the API, ticket 123"
    access: [values, gradients]       # what an attacker gets; left out: all that the target answers
    budget: {queries: 5000, seconds: 600, money: 2.50, currency: EUR}
    methods: [span, reconstruct, imitate]                 # left out: all that the access allows
    reference: {train: train.npz, unseen: unseen.npz, image_shape: [28, 28]}
    defences: [round-3, noise-0.01, label-only]
    severity:
      - {finding: training-data, metric: recovered, at_least: 0.5, severity: high}
    fail_on: high
    seed: 0
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from foldline.reports.document import Severity
from foldline.yaml_files import Strict, parsed, read_text

Access = Literal["values", "gradients", "labels", "weights"]
MethodName = Literal["span", "reconstruct", "imitate", "obfuscate", "extract", "weights", "learn", "labels"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]

METRICS: dict[str, tuple[str, ...]] = {
    "training-data": ("recovered", "count", "excess"),
    "training-data-weights": ("recovered", "count", "excess"),
    "span": ("rank", "fraction_of_input"),
    "imitation": ("agreement", "gain"),
    "obfuscation": ("same_answer",),
    "extraction": ("exact", "worst_error"),
    "learning": ("certified", "bound", "error"),
    "training-data-labels": ("recovered", "count", "excess"),
    "label-span": ("rank", "rows_per_direction"),
}


class Budget(Strict):
    """Whatever runs out first stops the audit; what was found until then is reported."""

    queries: Count | None = None
    seconds: Positive | None = None
    money: Positive | None = None
    currency: str = Field(default="EUR", max_length=8)


class Reference(Strict):
    """The owner's own data, for scoring only: no attack sees it, except `inputs`, which the attacker may have."""

    train: Path | None = Field(default=None, description="npz or safetensors, x (n, d): what it was trained on")
    unseen: Path | None = Field(default=None, description="the same form: the same kind, not trained on")
    inputs: Path | None = Field(default=None, description="inputs an attacker could have, for students and obfuscation")
    image_shape: tuple[Annotated[int, Field(gt=0)], ...] | None = None
    mean: float | Literal["inputs"] | None = Field(default=None, description=(
        "what inputs are centred by, as far as an attacker knows: a number, or inputs for the mean of `inputs`"))
    box: tuple[float, float] = (0.0, 1.0)

    @field_validator("image_shape")
    @classmethod
    def two_or_three(cls, found: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if found is not None and len(found) not in (2, 3):
            raise ValueError("it is [height, width], [height, width, colours] or [colours, height, width]")
        return found

    @model_validator(mode="after")
    def makes_sense(self) -> Self:
        if (self.train is None) != (self.unseen is None):
            raise ValueError("train and unseen belong together: without unseen samples there is no null")
        if not self.box[0] < self.box[1]:
            raise ValueError("box is [low, high] with low < high")
        if self.mean == "inputs" and self.inputs is None:
            raise ValueError("mean: inputs needs inputs to take the mean of")
        return self


class SeverityRule(Strict):
    """The first rule whose metric lies in its range decides; rules of the file come before the built-in ones."""

    finding: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    severity: Severity

    @model_validator(mode="after")
    def makes_sense(self) -> Self:
        if self.finding not in METRICS:
            raise ValueError(f"there is no finding {self.finding!r}; there are {', '.join(METRICS)}")
        if self.metric not in METRICS[self.finding]:
            raise ValueError(f"the finding {self.finding} has no metric {self.metric!r}, only "
                             f"{', '.join(METRICS[self.finding])}")
        if self.at_least is None and self.at_most is None:
            raise ValueError("a rule needs at_least, at_most or both")
        return self


class AuditFile(Strict):
    version: Literal[1]
    name: str = Field(default="audit", min_length=1, max_length=200)
    target: str = Field(min_length=1)
    output: Count = 0
    threshold: float = Field(default=0.0, allow_inf_nan=False, description="label 1 of a single output starts here")
    authorised: str | None = Field(default=None, max_length=1000)
    access: tuple[Access, ...] | None = None
    budget: Budget = Budget()
    price_per_query: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    methods: tuple[MethodName, ...] | None = None
    reference: Reference = Reference()
    students: tuple[Annotated[int, Field(gt=0)], ...] = Field(default=(10,), description="sizes of imitation, in rows")
    defences: tuple[str, ...] = ()
    severity: tuple[SeverityRule, ...] = ()
    fail_on: Severity | None = None
    redact: bool = False
    seed: int = Field(default=0, ge=0, lt=2**62)

    @field_validator("access", "methods", "defences")
    @classmethod
    def no_repeats(cls, found: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if found is not None and len(set(found)) < len(found):
            raise ValueError("something is named twice")
        return found

    @field_validator("access")
    @classmethod
    def not_empty(cls, found: tuple[Access, ...] | None) -> tuple[Access, ...] | None:
        if found is not None and not found:
            raise ValueError("it is empty: say what the attacker gets, or leave it out")
        return found

    @field_validator("defences")
    @classmethod
    def known_defences(cls, found: tuple[str, ...]) -> tuple[str, ...]:
        from foldline.auditing.defences import DEFENCES
        for name in found:
            if name not in DEFENCES:
                raise ValueError(f"there is no defence {name!r}; there are {', '.join(DEFENCES)}")
        return found

    @model_validator(mode="after")
    def makes_sense(self) -> Self:
        if self.budget.money is not None and self.price_per_query is None and not self.target.startswith("http:"):
            raise ValueError("a budget in money needs price_per_query, here or in the target's own description")
        return self

    def digest(self) -> str:
        """What a run folder belongs to: anything that changes an answer changes it."""
        kept = self.model_dump_json(exclude={"fail_on", "redact"})
        return hashlib.sha256(kept.encode()).hexdigest()


def read_audit_file(path: str | Path) -> tuple[AuditFile, str]:
    """The audit and its text. Paths in it are taken from the folder of the file."""
    path = Path(path)
    text = read_text(path, "The audit file")
    return parse_audit_file(text, str(path), path.parent), text


def parse_audit_file(text: str, name: str, folder: Path) -> AuditFile:
    return rooted(parsed(text, name, AuditFile, "an audit file is a mapping (version: 1, target: ...)"), folder)


def rooted(audit: AuditFile, folder: Path) -> AuditFile:
    """Relative paths are meant from the audit file's own folder."""
    changes = {k: folder / p for k in ("train", "unseen", "inputs") if (p := getattr(audit.reference, k)) is not None}
    audit = audit.model_copy(update={"reference": audit.reference.model_copy(update=changes)})
    scheme, colon, rest = audit.target.partition(":")
    if colon and scheme in ("http", "weights", "onnx", "sklearn") and not rest.startswith("//") \
            and not Path(rest).is_absolute():
        audit = audit.model_copy(update={"target": f"{scheme}:{folder / rest}"})
    return audit
