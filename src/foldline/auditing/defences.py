"""The defences an audit can try: how each is switched on, and what it is called in the report.

Those over answers and access wrap the model's answers the way the server would; those of training need the owner's
training set, and are tried on the embedded demo, whose recipe is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Group = Literal["answers", "access", "training"]


@dataclass(frozen=True)
class Defence:
    """`switches` go to the server as they are; `relative` ones are multiplied by the size of an explanation first."""

    name: str
    group: Group
    title: str
    description: str
    switches: dict[str, Any] = field(default_factory=dict)
    relative: dict[str, float] = field(default_factory=dict)
    budget_share: float | None = None
    box: bool = False


DEFENCES: dict[str, Defence] = {d.name: d for d in [
    Defence("round-6", "answers", "round to 6 decimals", "every number of an answer", {"decimals": 6}),
    Defence("round-4", "answers", "round to 4 decimals", "every number of an answer", {"decimals": 4}),
    Defence("round-3", "answers", "round to 3 decimals", "every number of an answer", {"decimals": 3}),
    Defence("round-2", "answers", "round to 2 decimals", "every number of an answer", {"decimals": 2}),
    Defence("noise-1", "answers", "noise of 1 %", "Gaussian, 1 % of an explanation's largest entry",
            relative={"noise": 0.01}),
    Defence("noise-10", "answers", "noise of 10 %", "Gaussian, 10 % of an explanation's largest entry",
            relative={"noise": 0.1}),
    Defence("clip-10", "answers", "clip explanations", "entries cut at 10 % of a typical largest entry",
            relative={"clip": 0.1}),
    Defence("bits-8", "answers", "8 bits", "explanations quantised to 256 levels", {"bits": 8}),
    Defence("bits-4", "answers", "4 bits", "explanations quantised to 16 levels, as a heat map shows them",
            {"bits": 4}),
    Defence("smoothgrad", "answers", "SmoothGrad", "the mean of 50 gradients around the input", {"smoothgrad": True}),
    Defence("pixels-only", "access", "only real pixels", "inputs outside [0, 1] are refused", box=True),
    Defence("budget-half", "access", "half the queries", "a client gets half as many explanations as the span took",
            budget_share=0.5),
    Defence("budget-quarter", "access", "a quarter of the queries", "a client gets a quarter of what the span took",
            budget_share=0.25),
    Defence("budget-eighth", "access", "an eighth of the queries", "a client gets an eighth of what the span took",
            budget_share=0.125),
    Defence("label-only", "access", "labels only", "no values, no explanations", {"top_label": True}),
    Defence("no-weight-decay", "training", "no weight decay", "the same recipe, weight decay off"),
    Defence("adam", "training", "Adam", "Adam instead of SGD, weight decay 1e-4"),
    Defence("dp-sgd", "training", "DP-SGD", "clip 1, noise 1, batches of at most 25 (opacus)"),
]}
