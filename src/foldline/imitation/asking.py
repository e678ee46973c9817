"""Asking a target everything a student is taught, once per query, and looking at the answers before they are used.

Answers with NaN are dropped and counted; a target that only answers labels or values is taken for that; explanations
that do not fit the values of the output they claim to explain are put aside. Every such fallback is a note.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foldline.errors import BadInput
from foldline.oracles.captum_explain import CaptumRecipe
from foldline.oracles.explain import Explained, ExplanationOracle, Link, Output, Recipe, innermost, recipe_of
from foldline.oracles.explain_forms import Form, found_form
from foldline.oracles.local import kept, source_of, value_oracle
from foldline.oracles.protocols import GradientOracle, LabelOracle, Oracle, Source, ValueOracle
from foldline.oracles.wrappers import Relay
from foldline.results import Progress

ROWS = 512                      # asked at once: how often progress is shown and answers are kept
PAIRS = 1000                    # differences of values that explanations are checked against
REPEAT_FROM = 16                # queries from which one of them is asked twice: at most 6 % more rows
SAME = 1e-3                     # of the answer's size: what batching and rounding do to one that is the same


@dataclass(eq=False)
class Asked:
    """x (n, d) as asked, values (n, k), explanations (n, m, d) of the outputs `of` (n, m); or labels (n,) alone."""

    x: Tensor
    values: Tensor | None = None
    labels: Tensor | None = None
    explanations: Tensor | None = None
    of: Tensor | None = None
    outputs: int | None = None
    queries: int = 0
    dropped: int = 0
    short_of_budget: int = 0
    recipe: Recipe = field(default_factory=Recipe)
    form: Form = "signed"
    notes: list[str] = field(default_factory=list)
    code: str = "ok"


class Screened(Relay):
    """Zeroes rows with NaN or infinity and remembers which: one bad row should not cost the rest of its batch."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.good: list[Tensor] = []

    def answer(self, x: Tensor) -> Tensor:
        block = super().answer(x)
        if not isinstance(block, Tensor) or block.ndim != 2 or len(block) != len(x):
            self.good.append(torch.ones(len(x), dtype=torch.bool))
            return block                                            # the oracle above says what is wrong with it
        good = block.isfinite().all(1) if block.is_floating_point() else torch.ones(len(block), dtype=torch.bool)
        self.good.append(good)
        return torch.where(good[:, None], block, torch.zeros((), dtype=block.dtype))


def open_oracle(target: Any, explain: Any, output: Output, *, link: Link, form: Form | None, samples: int,
                sigma: float | None, path_steps: int, baseline: float, noise: torch.Generator, budget: int | None,
                input_shape: tuple[int, ...] | None, run: Path | str | None) -> tuple[Oracle, list[str]]:
    """The oracle that tells most of what was wanted, and notes on what it does not."""
    if isinstance(target, Oracle):
        if explain is not None and isinstance(target, ValueOracle):
            return target, ["A value oracle was given: no explanation was asked."]
        return target, []
    if not isinstance(target, (str, Path)) and not callable(target):
        raise BadInput(f"A target is a torch module, a callable, a target string or an oracle, not "
                       f"{type(target).__name__}.")
    if explain is None:
        return value_oracle(target, budget, input_shape=input_shape, run=run), []
    recipe = recipe_of(explain, samples, sigma, path_steps, baseline, noise)
    values = source_of(target, "values", input_shape=input_shape)
    if isinstance(target, str) and isinstance(recipe, Recipe) and link == "identity" and form in (None, "signed"):
        from foldline.oracles.endpoint_explained import explained_endpoint
        remote = explained_endpoint(target, recipe)
        if remote is not None:                                      # a foldline server explains itself
            source: Source = kept(remote, target, f"{recipe.kind} explanations of all", run)
            return ExplanationOracle(source, budget=budget), []
    if not hasattr(values, "target"):
        return value_oracle(target, budget, input_shape=input_shape, run=run), \
            [f"{type(values).__name__} has no gradients to ask: values only."]
    if not isinstance(target, nn.Module) and values.width is None:
        return value_oracle(target, budget, input_shape=input_shape, run=run), \
            ["The target is a callable that does not say how many outputs it has, so it could not be explained: "
             "values only. Give it an `outputs` attribute, or pass the module."]
    source = Explained(values, recipe, output, link=link, form=form or "signed")
    if run is not None:
        name = recipe.kind if isinstance(recipe, Recipe) else type(getattr(recipe, "attribution", recipe)).__name__
        source = kept(source, target, f"{name} explanations of {output} ({link}, {form or 'signed'})", run)
    return ExplanationOracle(source, budget=budget), []


def ask(oracle: Oracle, x: Tensor, progress: Progress, repeat: bool | None = None) -> Asked:
    """All of x, or as much as the budget allows, in one pass; then the first row again (see `asked_twice`)."""
    before = oracle.used
    affordable = len(x) if oracle.remaining is None else min(len(x), oracle.remaining // oracle.cost)
    short = len(x) - affordable
    if affordable == 0:
        return Asked(x[:0], short_of_budget=short, code="budget")
    x = x[:affordable]
    screens: list[Screened] = []

    def screened(source: Source) -> Source:
        screens.append(Screened(source))
        return screens[-1]

    metered = oracle.wrap(screened)
    parts: list[Any] = []
    for part in torch.split(x, ROWS):
        parts.append(metered(part))                                 # type: ignore[operator]
        progress("asking", {"done": sum(len(g) for g in screens[0].good), "total": len(x)})
    good = torch.cat(screens[0].good)
    asked = Asked(x[good], queries=oracle.used - before, dropped=int((~good).sum()), short_of_budget=short)
    if isinstance(oracle, LabelOracle):
        asked.labels = torch.cat(parts)[good]
    elif isinstance(oracle, ValueOracle):
        values = torch.cat(parts)[good]
        if values.is_floating_point():
            asked.values = values
        else:
            asked.labels = values[:, 0].long()
    elif isinstance(oracle, GradientOracle):
        asked.values = torch.cat([y for y, _ in parts])[good][:, None]
        asked.explanations = torch.cat([g for _, g in parts])[good][:, None]
        asked.of = torch.zeros(len(asked.x), 1, dtype=torch.int64)
    else:
        asked.values = torch.cat([p.values for p in parts])[good]
        asked.explanations = torch.cat([p.explanations for p in parts])[good]
        asked.of = torch.cat([p.of for p in parts])[good]
        inner = innermost(oracle.source)
        asked.recipe = twin_of(inner.recipe)
        asked.form = inner.form
    if asked.dropped:
        asked.notes.append(f"{asked.dropped} of {len(x)} answers held NaN or infinity and were dropped.")
    if len(x) >= REPEAT_FROM if repeat is None else repeat:
        asked_twice(metered, asked)
        asked.queries = oracle.used - before
    look(asked)
    return asked


def asked_twice(oracle: Any, asked: Asked) -> None:
    """A note if the first row is answered differently the second time. One row, billed; not asked where noise was
    declared (SmoothGrad) or the budget has ended."""
    declared = asked.explanations is not None and asked.recipe.kind == "smoothgrad"
    if declared or len(asked.x) == 0 or (oracle.remaining is not None and oracle.remaining < oracle.cost):
        return
    again = oracle(asked.x[:1])
    if isinstance(oracle, ExplanationOracle):
        pairs = {"values": (asked.values, again.values), "explanations": (asked.explanations, again.explanations)}
    elif isinstance(oracle, GradientOracle):
        pairs = {"values": (asked.values, again[0][:, None]), "explanations": (asked.explanations, again[1][:, None])}
    else:
        pairs = {"answers": (asked.values if asked.labels is None else asked.labels[:, None], again.reshape(1, -1))}
    moved = {name: float((new.double() - old[:1].double()).norm() / old[:1].double().norm().clamp_min(1e-30))
             for name, (old, new) in pairs.items() if old is not None}
    said = ", ".join(f"{name} by {size:.2g} of their size" for name, size in moved.items() if size > SAME)
    if said:
        asked.notes.append(f"The target is not deterministic: the same query was answered differently the second time "
                           f"({said}). It is learned from as it is; the difference acts as noise of the answers.")


def twin_of(recipe: Any) -> Recipe:
    """The formula a student follows. A captum attribution keeps its own options; the student takes their usual twin."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, CaptumRecipe):
        kind = recipe.twin
        sigma = float(recipe.options.get("stdevs", 1.0)) if kind == "smoothgrad" else None
        return Recipe(kind, sigma=sigma, rng=torch.Generator())
    return Recipe()


def look(asked: Asked) -> None:
    """Put aside what cannot be what it claims to be."""
    e, v = asked.explanations, asked.values
    if e is None or v is None or asked.of is None or len(asked.x) == 0:
        return
    if float(e.abs().max()) == 0.0:
        if len(v) > 1 and float((v - v[:1]).abs().max()) > 0:
            asked.notes.append("Every explanation is zero while the values differ, so the target cannot be "
                               "differentiated: values only.")
            asked.explanations = asked.of = None
            asked.code = "no_explanations"
        return
    seen = found_form(e.reshape(-1, e.shape[2]))
    if asked.form == "signed" and seen != "signed":
        asked.form = seen
        asked.notes.append(f"The explanations look {seen}; they are compared as such. {LOST[seen]}")
    wrong = wrong_output(asked)
    if wrong is not None:
        asked.notes.append(wrong)
        asked.explanations = asked.of = None
        asked.code = "explanations_disagree"


LOST: dict[Form, str] = {
    "normalised": "Their scale is lost: only directions are matched.",
    "8bit": "Their scale and everything below 1/254 of the largest is lost: only directions are matched.",
    "clipped": "The largest are only known to be at least the bound.",
    "absolute": "The signs are lost, and with them most of what a gradient says about the class: only sizes are "
                "matched.",
    "image": "Scale and offset are lost: only the picture is matched.",
    "signed": "",
}


def wrong_output(asked: Asked) -> str | None:
    """A sentence if the explanations follow the values of another output than they claim.

    e_i . (x_b - x_i) should go up and down with f_j(x_b) - f_j(x_i). Only signed gradients can be checked.
    """
    e, v, of = asked.explanations, asked.values, asked.of
    assert e is not None and v is not None and of is not None
    n, k = v.shape
    checkable = asked.form in ("signed", "normalised") and asked.recipe.kind in ("gradient", "smoothgrad")
    if not checkable or n < 4 or k < 2:
        return None
    most = min(n, PAIRS)                                                        # every point against a few others
    each = max(1, min(n - 1, PAIRS // most))
    a = torch.arange(most).repeat_interleave(each)
    b = (a + 1 + torch.arange(each).repeat(most)) % n
    step = asked.x[b].double() - asked.x[a].double()                            # (pairs, d)
    rise = v[b].double() - v[a].double()                                        # (pairs, k)
    found = torch.zeros(k, k)                                                   # claimed output x output it follows
    for j in range(k):
        mine = of[a] == j                                                       # (pairs, m)
        rows = mine.any(1)
        if int(rows.sum()) < 12:
            continue
        which = mine[rows].int().argmax(1)
        predicted = (e[a[rows], which].double() * step[rows]).sum(1)            # (pairs,)
        table = torch.cat([predicted[:, None], rise[rows]], 1).T                # (1 + k, pairs)
        table = table - table.mean(1, keepdim=True)
        table = table / table.norm(dim=1, keepdim=True).clamp_min(1e-300)
        found[j] = (table[1:] @ table[0]).float()
    claimed, other = found.diagonal(), found.clone()
    other.fill_diagonal_(-1)
    best = other.max(1)
    off = (best.values > 0.6) & (claimed < 0.5 * best.values)
    if int(off.sum()) * 2 <= int((found.abs().sum(1) > 0).sum()):
        return None
    pairs = ", ".join(f"{j} like {int(best.indices[j])}" for j in off.nonzero()[:, 0].tolist()[:4])
    return (f"The explanations do not belong to the outputs that were asked (output {pairs}), so they were put aside: "
            f"values only.")

