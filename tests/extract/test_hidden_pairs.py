"""Gaps that hide two folds, named by the disagreements of many test points."""

import pytest
import torch
from torch import Tensor

import foldline as fl
from foldline.extract.hidden_pairs import Disagreement, enough_tests, spanned, switched

D = torch.float64


def disagreements(tests: int, *, weak: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(V (40, d), active (n, 40), R (n, d)): 40 gaps without biases, the first 5 of which are really two folds,
    the second of them `weak` times as large; R is how far the gradients at n random points differ from the gaps'."""
    rng = torch.Generator().manual_seed(seed)
    d = 60
    V, hidden = (torch.randn(n, d, generator=rng, dtype=D) for n in (40, 5))
    x = torch.randn(tests, d, generator=rng, dtype=D)
    hidden = weak * hidden
    strong = V[:5].clone()
    V[:5] += hidden
    active = x @ V.T > 0
    R = (x @ strong.T > 0).double() @ strong + (x @ hidden.T > 0).double() @ hidden - active[:, :5].double() @ V[:5]
    return V, active, R


@pytest.mark.parametrize("seed", range(5))
def test_two_strong_folds_span_their_sum(seed: int) -> None:
    V, _, R = disagreements(30, weak=0.8, seed=seed)
    found = Disagreement.of(R, 1e-12)
    assert found.rank == 10 and found.saturated
    assert spanned(found, V).nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_a_weak_fold_beside_a_strong_one_is_named_by_where_it_switches(seed: int) -> None:
    V, active, R = disagreements(30, weak=1e-5, seed=seed)           # hyperplanes of sum and strong one: 1e-5 apart
    found = Disagreement.of(R, 1e-12)
    assert found.rank == 5 and enough_tests(5, 40) < 30
    assert not bool(spanned(found, V).any())                         # nothing in the sum tells of the weak one
    assert switched(found, active).nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_few_disagreements_name_nothing() -> None:
    V, active, R = disagreements(3, weak=1e-5, seed=0)
    found = Disagreement.of(R, 1e-12)
    assert not found.saturated and len(V) == 40 and enough_tests(3, 40) > 3 and not bool(spanned(found, V).any())
    one = Disagreement.of(R[:1], 1e-12)                              # a single sign fits every gap
    assert not bool(switched(one, active[:1]).any())


def test_weak_units_beside_strong_ones_stay_within_the_limit() -> None:
    """612 rows when only blame and chance named gaps."""
    d, h = 300, 256
    rng = torch.Generator().manual_seed(0)
    W, _, A = (torch.randn(*s, generator=rng, dtype=D) for s in ((h, d), (h,), (1, h)))
    A[:, :20] *= 0.02
    none = torch.zeros(1, d, dtype=D)
    net = fl.Network(W / d**0.5, torch.zeros(h, dtype=D), A / h**0.5, none, none[0, :1])
    r = fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(0))
    assert r.status.ok and r.units == h and r.queries <= 2.2 * h + 10
