"""The YAML that describes somebody's HTTP API as a target (`http:spec.yaml`).

    url: https://api.example.com/v1/predict
    headers: {Authorization: "Bearer ${EXAMPLE_TOKEN}"}      # secrets only from the environment
    dim: 784
    outputs: 10
    box: [0, 1]                   # where queries must lie, if the API says so
    rows_per_request: 64
    concurrency: 4
    rate_limit: 20                # requests per second
    timeout: 30                   # seconds
    price_per_query: 0.0001       # per row
    request: {rows: instances, shape: [28, 28], extra: {model: v2}}
    values: {answers: predictions.*.scores, ids: predictions.*.index}
    labels: {answers: predictions.*.label, classes: [cat, dog]}
    gradient:
      url: https://api.example.com/v1/explain
      answers: explanations.*.gradient
      value: explanations.*.score
      output: class_index         # where the number of the output goes

Paths are dotted names; `*` is every item of a list, a number one item.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import torch
from pydantic import Field, model_validator

from foldline.errors import BadSpec, Missing
from foldline.oracles.protocols import Kind
from foldline.yaml_files import Strict, parsed, read_text

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
SECRET = re.compile(r"authori[sz]ation|cookie|key|token|secret|password", re.IGNORECASE)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RequestSpec(Strict):
    rows: str = Field(default="rows", min_length=1)
    shape: tuple[Annotated[int, Field(gt=0)], ...] | None = None    # of one row in the request; flat if not said
    single: bool = False                                            # one row per request, not wrapped in a list
    ids: str | None = None                                          # where the rows' numbers go, to be echoed
    extra: dict[str, Any] = Field(default_factory=dict)             # constant fields of the body
    encoding: Literal["json", "safetensors"] = "json"


class AnswerSpec(Strict):
    url: str | None = None                      # where this is asked, if not at the spec's own url
    method: Literal["POST", "PUT"] | None = None
    request: RequestSpec | None = None
    answers: str                                # path to the answers, one per row
    ids: str | None = None                      # path to the rows' numbers (echoed, or 0, 1, 2, ...)
    value: str | None = None                    # gradient only: path to the output's value
    output: str | None = None                   # gradient only: where the number of the output goes
    classes: list[str | int] | None = None      # names of labels, or keys of named scores, in order


class EndpointSpec(Strict):
    url: str
    method: Literal["POST", "PUT"] = "POST"
    headers: dict[str, str] = Field(default_factory=dict)
    dim: int = Field(gt=0)
    outputs: int | None = Field(default=None, gt=0)
    dtype: Literal["float32", "float64"] = "float64"
    box: tuple[float, float] | None = None
    rows_per_request: int = Field(default=64, gt=0, le=1_000_000)
    least_rows: int | None = Field(default=None, gt=0)     # batches are cut finer so that requests overlap, not below
    concurrency: int = Field(default=4, gt=0, le=64)
    rate_limit: Positive | None = None
    timeout: Positive = 30.0
    attempts: int = Field(default=9, gt=0, le=100)
    price_per_query: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    verify: str | None = None                   # a CA bundle of your own; verification cannot be switched off
    request: RequestSpec = RequestSpec()
    values: AnswerSpec | None = None
    labels: AnswerSpec | None = None
    gradient: AnswerSpec | None = None

    @model_validator(mode="after")
    def makes_sense(self) -> Self:
        parts = {k: p for k in ("values", "labels", "gradient") if (p := getattr(self, k)) is not None}
        if not parts:
            raise ValueError("say at least one of values, labels and gradient: what the API answers")
        for url in {self.url, *(p.url for p in parts.values() if p.url)}:
            checked_url(url, bool(self.headers))
        if self.values is not None and self.outputs is None:
            raise ValueError("values need outputs: how many numbers the API answers per row")
        if self.gradient is not None and self.gradient.value is None:
            raise ValueError("gradient needs value: the path to the output's value, which the methods use as well")
        if self.box is not None and not self.box[0] < self.box[1]:
            raise ValueError("box is [low, high] with low < high")
        for request in (self.request, *(p.request for p in parts.values() if p.request)):
            if request.single and self.rows_per_request != 1:
                raise ValueError("single needs rows_per_request: 1")
            if request.shape is not None and torch.Size(request.shape).numel() != self.dim:
                raise ValueError(f"shape {list(request.shape)} does not have dim = {self.dim} numbers")
        for name, value in self.headers.items():
            if SECRET.search(name) and not VARIABLE.search(value):
                raise ValueError(f"the header {name} looks like a secret: write it as \"${{VARIABLE}}\" and set the "
                                 f"variable, so that the file can be shared")
        return self

    def secret_headers(self) -> dict[str, str]:
        """Headers with the environment's values in place; never stored, never printed."""
        return {name: VARIABLE.sub(lambda m: environment(m.group(1)), value) for name, value in self.headers.items()}

    def part(self, kind: Kind) -> AnswerSpec:
        part: AnswerSpec | None = getattr(self, kind)
        if part is None:
            said = [k for k in ("values", "labels", "gradient") if getattr(self, k) is not None]
            raise BadSpec(f"The API at {self.url} does not answer {kind}, only {', '.join(said)}.")
        return part


def environment(name: str) -> str:
    if name not in os.environ:
        raise Missing(f"The environment variable {name}, which the target's headers need, is not set.")
    return os.environ[name]


def checked_url(url: str, secrets: bool) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an http or https address")
    if parts.username or parts.password:
        raise ValueError("an address must not hold a user or password: use a header with a ${VARIABLE}")
    if secrets and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise ValueError(f"{url} is not https: the headers would cross the network in the clear")
    return url


def read_spec(path: str | Path) -> EndpointSpec:
    text = read_text(Path(path), "The target's description")
    return parsed(text, str(path), EndpointSpec, "the description of an API is a mapping (url:, dim:, values: ...)")
