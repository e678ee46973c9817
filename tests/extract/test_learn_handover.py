"""What exact extraction takes over, what it costs, and what the certificate then says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from learn_nets import D, bump, generic, joined, learn, make, relative
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BudgetExhausted
from foldline.extract.learn_certificate import certify, probes_for, probes_wanted
from foldline.extract.learn_handover import FIRST_ROWS, Allowance, folding, try_extraction
from foldline.extract.learn_model import Model
from foldline.oracles.ledger import Ledger
from foldline.oracles.protocols import InFront, Kind, Source, ValueOracle


def test_generic_network_is_handed_over_and_exact() -> None:
    net = generic(24, 60, 0)
    found = learn(net, 60)
    assert found.status.ok and found.handed_over and found.units == 24
    assert relative(net, found.network, 60) < 1e-8
    assert found.queries - found.certificate.probes <= 1.15 * (24 * 62 + 1)


class Recorded(InFront):
    """Every row that was asked, in order."""

    kind: Kind = "values"

    def __init__(self, source: Source) -> None:
        self.source, self.width = source, source.width
        self.asked: list[Tensor] = []

    def answer(self, x: Tensor) -> Tensor:
        self.asked.append(x.clone())
        return self.source.answer(x)


@pytest.mark.parametrize(("k", "d", "outputs"), [(6, 12, 1), (90, 5, 1), (30, 8, 3)])
def test_a_hand_over_asks_what_extraction_asks_and_then_the_certificate(k: int, d: int, outputs: int) -> None:
    net = generic(k, d, 20, outputs)
    one, two = Recorded(fl.value_oracle(net).source), Recorded(fl.value_oracle(net).source)
    learnt = fl.learn_from_queries(ValueOracle(one), rng=fl.generator(3))
    plain = fl.extract_from_values(ValueOracle(two), rng=fl.generator(3))
    rows, same = torch.cat(one.asked), torch.cat(two.asked)
    assert learnt.handed_over and torch.equal(rows[:len(same)], same)
    # Extraction's 8 probes and the 3 points it begins with are Gaussian, and part of the certificate.
    assert learnt.queries == plain.queries + learnt.certificate.probes - 8 - 3
    equal = fl.extract_from_values(fl.value_oracle(net), rng=fl.generator(3), probes=learnt.certificate.probes)
    assert learnt.queries <= equal.queries


def test_a_small_certificate_costs_what_extraction_costs() -> None:
    net = generic(10, 12, 21)
    found = learn(net, 12, kurtosis=3.0)
    plain = fl.extract_from_values(fl.value_oracle(net), rng=fl.generator(0))
    assert found.status.ok and found.certificate.kurtosis >= 3 and found.queries <= plain.queries + 5


def test_a_network_in_float32_is_handed_over() -> None:
    net = generic(8, 24, 22)
    single = nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        for p, v in zip(single.parameters(), (net.W, net.b, net.A, net.q), strict=True):
            p.copy_(v)
    found = learn(single, 24)
    assert found.status.ok and found.handed_over and relative(net, found.network, 24) < 1e-3
    assert found.queries - found.certificate.probes < 3 * (8 * 26 + 1)


def test_large_answers_are_extracted_in_their_own_unit() -> None:
    net = generic(12, 10, 23)
    large = make(net.W, net.b, 1e9 * net.A)
    found = learn(large, 10)
    assert found.status.ok and found.handed_over and relative(large, found.network, 10) < 1e-7


def test_a_search_that_chases_rounding_gets_no_more_rows() -> None:
    """Where large units cancel, rounding looks like folds to the search; more folds than FIRST_ROWS find do not."""
    g = fl.generator(0)
    t = torch.randn(400, 1, generator=g, dtype=D).sort(0).values
    x = 1.0 + t * torch.tensor([[0.6, 0.8]], dtype=D)
    rounding = 3 + x.sum(1, keepdim=True) + 1e-13 * torch.randn(400, 1, generator=g, dtype=D)
    assert not folding([(x, rounding)]) and not folding([])
    many = try_extraction(fl.value_oracle(generic(180, 5, 24)), outputs=1, reserve=32, rng=fl.generator(1))
    assert many.model is not None and many.model.h == 180
    f = fl.value_oracle(joined(generic(20, 10, 1001), bump(1e-2, 10, height=2.0)))
    try_extraction(f, outputs=1, reserve=32, rng=fl.generator(1))
    assert f.used < FIRST_ROWS + 600


def test_the_affine_part_is_read_near_the_origin_even_if_far_slopes_are_better_known() -> None:
    model = Model.empty(2, 1)
    model.places.append(np.array([[0.0, 1.0], [1.0, 0.0], [1e4, 0.0]]))
    model.slopes.append(np.array([[[2.0, 3.0]], [[2.0, 3.0]], [[7.0, 7.0]]]))
    model.values.append(np.array([[3.5], [2.5], [0.0]]))
    model.slope_errors.append(np.array([1e-6, 1e-6, 1e-12]))
    model.read_affine_part()
    np.testing.assert_allclose(model.P, [[2.0, 3.0]])
    np.testing.assert_allclose(model.q, [0.5])


def test_points_of_a_failed_hand_over_are_kept() -> None:
    """The look is topped up, not asked again, and the budget it needs is left."""
    net = bump(1e-3, 4)
    seen: list[tuple[str, dict[str, float]]] = []
    f = fl.value_oracle(net, 2_000)
    fl.learn_from_queries(f, rng=fl.generator(2), progress=lambda stage, numbers: seen.append((stage, dict(numbers))))
    rows = {stage: int(numbers["rows"]) for stage, numbers in reversed(seen) if "rows" in numbers}
    assert rows["look"] - rows["extraction"] < 32
    with pytest.raises(BudgetExhausted):
        f(torch.zeros(2_001, 4, dtype=D))
    tight = fl.value_oracle(generic(60, 8, 13), 40)
    try_extraction(tight, outputs=1, reserve=32, rng=fl.generator(0))
    assert tight.remaining is not None and tight.remaining >= 32


@pytest.mark.parametrize("rest", [0.3, 0.0])
def test_the_bound_fails_no_more_often_than_it_says(rest: float) -> None:
    """Residuals of known kurtosis: the bound holds in at least 1 - delta of the draws. With probability p the square
    is 1, else `rest` p: with rest = 0 the heaviest law of its kurtosis, which the largest residual must catch."""
    rng = np.random.default_rng(0)
    n, delta = 400, 0.1
    by_worst, by_mean = (n / each for each in probes_for(1.0, delta))
    kurtosis = by_mean if rest else by_worst
    p = 1 / kurtosis
    mean = p + (1 - p) * rest * p
    assert (p + (1 - p) * (rest * p) ** 2) / mean ** 2 <= kurtosis
    failures = 0
    for _ in range(1000):
        r = np.sqrt(np.where(rng.random((n, 1)) < p, 1.0, rest * p))
        c = certify(r, sd=1.0, epsilon=1.0, delta=delta, relative=True, noise=0.0)
        assert c.kurtosis == pytest.approx(by_worst if c.worst <= 0.1 else by_mean)
        failures += c.kurtosis >= kurtosis * (1 - 1e-9) and c.squared_error_bound < mean
    assert failures <= 100


def test_the_worst_probe_bounds_ten_times_itself() -> None:
    """Gaussian residuals: the bound is far above E r^2, and covers tails eight times heavier."""
    r = 1e-6 * np.random.default_rng(1).standard_normal((256, 1))
    c = certify(r, sd=1.0, epsilon=1e-3, delta=0.05, relative=True, noise=0.0)
    assert c.holds and c.bound == pytest.approx(10 * c.worst) and c.bound > 1e-6
    rough = certify(r, sd=1.0, epsilon=5e-6, delta=0.05, relative=True, noise=0.0)
    assert rough.holds and rough.bound == pytest.approx(math.sqrt(2) * rough.relative_error)
    assert c.kurtosis == pytest.approx(8 * 0.99 ** 2 * rough.kurtosis)


def test_probes_follow_from_the_tails_asked_for() -> None:
    assert probes_wanted(10, 0.05, 100.0) == (math.ceil(100 * math.log(40) / 0.99 ** 2), math.ceil(800 * math.log(40)))
    assert probes_wanted(100, 0.05, None) == (256, 256) and probes_wanted(1, 0.05, None) == (12000, 12000)
    found = learn(generic(5, 4, 25), 4, kurtosis=60.0)
    assert found.status.ok and 60 <= found.certificate.kurtosis < 61


def test_certificate_counts_what_is_off() -> None:
    c = certify(np.array([[0.0], [0.0], [5.0], [0.0]]), sd=2.0, epsilon=0.1, delta=0.05, relative=True, noise=0.0)
    assert (c.off, c.worst, c.probes) == (1, 5.0, 4) and not c.holds
    assert not certify(np.zeros((0, 1)), sd=1.0, epsilon=1.0, delta=0.05, relative=True, noise=0.0).holds


def test_allowance_charges_both_ledgers() -> None:
    outer = Ledger(100)
    inner = Allowance(outer, 20)
    inner.charge(15)
    assert outer.used == inner.used == 15
    with pytest.raises(BudgetExhausted):
        inner.charge(10)
    assert outer.used == 15
    inner.allow(90)
    with pytest.raises(BudgetExhausted):                            # the outer budget still holds
        inner.charge(90)
    assert (outer.used, inner.used) == (15, 15)
