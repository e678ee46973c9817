"""Results: certificates that mean what they say, JSON without surprises, streams that do not shift each other."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import binom

import foldline as fl
from foldline.errors import BadInput, BudgetExhausted, FoldlineError
from foldline.oracles.ledger import Ledger
from foldline.randomness import Streams, unit_rows
from foldline.results import INLINE_ELEMENTS, FunctionCertificate, Result, Status, fraction_upper_bound, plain


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (0, 60), (3, 50), (49, 50), (50, 50)])
def test_the_bound_is_the_largest_fraction_that_explains_the_hits(hits: int, n: int) -> None:
    bound = fraction_upper_bound(hits, n, 0.95)
    if hits == n:
        assert bound == 1.0
    else:
        assert binom.cdf(hits, n, bound) == pytest.approx(0.05, rel=1e-6)


def test_a_nan_residual_is_off() -> None:
    c = FunctionCertificate.of(torch.tensor([0.0, float("nan"), -3.0]), tolerance=1.0, distribution="test")
    assert c.off == 2 and not c.holds and math.isnan(c.worst)
    empty = FunctionCertificate.of(torch.zeros(0, 2), tolerance=1.0, distribution="test")
    assert empty.probes == 0 and not empty.holds and empty.fraction_bound == 1.0


def test_everything_becomes_json() -> None:
    big = torch.arange(INLINE_ELEMENTS + 1, dtype=torch.float64)
    value = {"t": torch.eye(2), "big": big, "nan": float("nan"), "inf": [float("inf"), -float("inf")],
             3: np.float64(2.5), "status": Status("ok", "Done."),
             "module": torch.nn.Linear(1, 1), "none": None, "set": {1}}
    found = json.loads(json.dumps(plain(value), allow_nan=False))
    assert found["t"] == [[1.0, 0.0], [0.0, 1.0]] and found["nan"] is None and found["inf"] == ["inf", "-inf"]
    assert found["3"] == 2.5 and found["status"]["ok"] is True and found["module"]["module"] == "Linear"
    import base64
    assert np.array_equal(np.frombuffer(base64.b64decode(found["big"]["base64"]), found["big"]["dtype"]), big.numpy())


def test_results_are_frozen() -> None:
    found = fl.recover_affine(fl.value_oracle(torch.nn.Linear(2, 1)), rng=fl.generator(0))
    assert isinstance(found, Result)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.queries = 0           # type: ignore[misc]


def test_streams_do_not_shift_each_other() -> None:
    a, b = Streams(fl.generator(5)), Streams(fl.generator(5))
    torch.rand(100, generator=a("first"))
    assert torch.equal(torch.rand(3, generator=a("second")), torch.rand(3, generator=b("second")))
    assert not torch.equal(torch.rand(3, generator=a("first")), torch.rand(3, generator=a("second")))
    assert Streams(fl.generator(6)).integer("x") != a.integer("x") and a.seed == 5
    rng = fl.generator(1)
    assert Streams(rng).root != Streams(rng).root                   # two methods in a row draw differently
    rows = unit_rows(5, 3, rng=rng)
    assert torch.allclose(rows.norm(dim=1), torch.ones(5).double())


def test_errors_form_one_tree_and_travel_between_processes() -> None:
    error = BudgetExhausted(5, 3, 7)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    kinds, seen = [FoldlineError], []
    while kinds:
        kind = kinds.pop()
        seen.append(kind)
        kinds += kind.__subclasses__()
        assert kind.exit_code == (2 if issubclass(kind, BadInput) else 3)
        assert issubclass(kind, ValueError) == issubclass(kind, BadInput)
    text = fl.errors.__doc__
    assert all(kind.__name__ in text for kind in seen if kind.__module__ == "foldline.errors")


def test_a_ledger_is_shared_and_never_crossed() -> None:
    ledger = Ledger(10)
    f = fl.value_oracle(torch.nn.Linear(2, 1), ledger=ledger)
    g = fl.gradient_oracle(torch.nn.Linear(2, 1), ledger=ledger)
    f(torch.zeros(6, 2))
    with pytest.raises(BudgetExhausted, match="6 of the budget of 10"):
        g(torch.zeros(5, 2))
    g(torch.zeros(4, 2))
    assert f.used == g.used == 10 and f.remaining == 0 and f.budget == 10
    for bad in (-1, 2.5):
        with pytest.raises(ValueError, match="whole number"):
            Ledger(bad)             # type: ignore[arg-type]
