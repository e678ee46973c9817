"""One suite that every querying method goes through: the promises of CONTRACT.md that do not depend on the method.

A new method is one more Case. The target counts the rows it is really asked, so a bill that lies is seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.oracles.protocols import Oracle
from foldline.oracles.transcript import open_run
from foldline.results import Result, Status


class Counting(nn.Module):
    """A small trained-looking ReLU network that counts what it is asked; in training mode, to see it restored."""

    def __init__(self, d: int, *hidden: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise((d, *hidden, 1)):
            layers += [nn.Linear(n_in, n_out), nn.ReLU(), nn.Dropout(0.5)]
        self.net = nn.Sequential(*layers[:-2]).double()
        with torch.no_grad():
            for p in self.net.parameters():
                p.normal_(generator=fl.generator(11))
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        y: Tensor = self.net(x)
        return y


@dataclass(frozen=True)
class Case:
    method: str                                         # the public name
    target: Callable[[], Counting]
    oracle: Callable[..., Oracle]                       # value_oracle, gradient_oracle or label_oracle
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method}-{self.oracle.__name__.partition('_')[0]}"

    def run(self, target: Counting, *, seed: int = 0, budget: int | None = None) -> tuple[Result, Oracle]:
        oracle = self.oracle(target, budget=budget)
        return getattr(fl, self.method)(oracle, **self.settings, rng=fl.generator(seed)), oracle


def two_layer() -> Counting:
    return Counting(6, 4)


CASES = [
    Case("recover_affine", lambda: Counting(6), fl.value_oracle),
    Case("recover_affine", lambda: Counting(6), fl.gradient_oracle),
    Case("extract_from_gradients", two_layer, fl.gradient_oracle),
    Case("extract_from_values", two_layer, fl.value_oracle),
    Case("learn_from_queries", lambda: Counting(3, 2), fl.value_oracle, {"epsilon": 0.05, "delta": 0.1}),
    Case("recover_span", lambda: Counting(12, 3), fl.gradient_oracle),
    Case("recover_span", lambda: Counting(12, 3), fl.value_oracle),
    Case("recover_span_from_labels", lambda: Counting(8, 3), fl.label_oracle),
]
CASES = [case for case in CASES if find_spec(f"foldline.{fl._HOME[case.method]}")]
each = pytest.mark.parametrize("case", CASES, ids=str)

_first: dict[str, tuple[Result, Oracle, Counting]] = {}


def first_run(case: Case) -> tuple[Result, Oracle, Counting]:
    """One run without a budget, shared by the tests that only look at it."""
    if str(case) not in _first:
        target = case.target()
        found, oracle = case.run(target)
        _first[str(case)] = found, oracle, target
    return _first[str(case)]


def comparable(result: Result) -> str:
    """JSON without wall-clock times: everything else must repeat to the bit."""
    def without_times(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_times(v) for k, v in value.items() if "second" not in k and "time" not in k}
        return [without_times(v) for v in value] if isinstance(value, list) else value

    return json.dumps(without_times(result.to_dict()), allow_nan=False)


@each
def test_it_ends_well_and_bills_what_it_asked(case: Case) -> None:
    found, oracle, target = first_run(case)
    assert isinstance(found, Result) and isinstance(found.status, Status)
    assert found.status.ok, str(found.status)
    assert found.queries == oracle.used == target.rows > 0
    assert found.provenance.method and found.provenance.seed == 0


@each
def test_the_result_is_frozen_json_and_the_target_untouched(case: Case) -> None:
    found, _, target = first_run(case)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.queries = 0           # type: ignore[misc]
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert {"schema_version", "kind", "status", "queries", "certificate", "provenance"} <= set(told)
    assert target.training and target.net.training and all(p.grad is None for p in target.parameters())


@each
def test_the_same_seed_repeats_to_the_bit_and_no_global_seed_is_touched(case: Case) -> None:
    target = case.target()
    before = torch.random.get_rng_state()
    again, _ = case.run(target)
    assert torch.equal(before, torch.random.get_rng_state())
    assert comparable(again) == comparable(first_run(case)[0])


@each
def test_rng_is_required_and_checked(case: Case) -> None:
    method = getattr(fl, case.method)
    parameter = inspect.signature(method).parameters["rng"]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty
    oracle = case.oracle(case.target())
    with pytest.raises(TypeError):
        method(oracle, **case.settings)
    with pytest.raises(ValueError, match="Generator"):
        method(oracle, **case.settings, rng=7)
    assert oracle.used == 0


@pytest.mark.parametrize("name", ["imitate", "obfuscate", "reconstruct", "reconstruct_from_span", "invert"])
def test_methods_without_an_oracle_require_rng_too(name: str) -> None:
    parameter = inspect.signature(getattr(fl, name)).parameters["rng"]
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty


@each
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
def test_a_budget_is_a_status_with_the_best_so_far(case: Case, share: float) -> None:
    whole, _, _ = first_run(case)
    budget = int(share * whole.queries)
    target = case.target()
    found, oracle = case.run(target, budget=budget)
    assert found.queries == oracle.used == target.rows <= budget
    # A method that plans by its budget may do with less than it would like, but not with a tenth.
    assert found.status.code == "budget" or (found.status.ok and share > 0.5), str(found.status)
    assert type(found) is type(whole) and json.dumps(found.to_dict(), allow_nan=False)


@each
def test_a_run_folder_repeats_the_result_without_asking(case: Case, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with open_run(tmp_path) as run:
            target = case.target()
            oracle = case.oracle(target, run=run)
            found.append(getattr(fl, case.method)(oracle, **case.settings, rng=fl.generator(0)))
            assert run.sent == run.kept == found[0].queries == oracle.used      # billed alike, sent once
    assert target.rows == 0 and comparable(found[0]) == comparable(found[1])


@each
def test_a_target_that_fails_midway_is_told_as_an_error_of_the_tree(case: Case) -> None:
    whole, _, _ = first_run(case)

    class Failing(Counting):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y * float("nan") if self.rows > whole.queries // 2 else y

    target = case.target()
    target.__class__ = Failing
    with contextlib.suppress(fl.errors.BadAnswer):    # raised as what it is, or told as a status
        found, _ = case.run(target)
        assert not found.status.ok
