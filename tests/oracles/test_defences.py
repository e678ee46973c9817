"""Defences change what they say they change, compose in any order, and ask nothing more."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import foldline as fl
from foldline.errors import BadAnswer, BadInput, TargetError
from foldline.oracles.defences import Cached, Clipped, LabelOnly, Noisy, Quantised, Retried, Rounded
from foldline.oracles.local import source_of


def net() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(generator=fl.generator(0))
    return module


def queries(n: int = 50) -> Tensor:
    return torch.randn(n, 3, generator=fl.generator(1), dtype=torch.float64)


def test_rounding_clipping_and_labels_by_hand() -> None:
    f = fl.value_oracle(lambda x: torch.cat([x / 3, -x / 3], 1), dim=1)
    x = torch.tensor([[1.0], [5.0]], dtype=torch.float64)
    assert f.wrap(lambda s: Rounded(s, 2))(x).tolist() == [[0.33, -0.33], [1.67, -1.67]]
    assert f.wrap(lambda s: Clipped(s, -0.5, 1.0))(x)[1].tolist() == [1.0, -0.5]
    labels = fl.LabelOracle(LabelOnly(f.source), f.ledger)
    assert labels(x - 3).tolist() == [1, 0]
    assert f.used == 6


def test_an_eight_bit_explanation_keeps_the_value_and_255_levels() -> None:
    g = fl.gradient_oracle(net())
    x = queries()
    y, grad = g(x)
    y8, grad8 = g.wrap(lambda s: Quantised(s, 8))(x)
    assert torch.equal(y, y8)
    step = grad.abs().amax(1, keepdim=True) / 127
    assert bool(((grad - grad8).abs() <= step / 2 * (1 + 1e-12)).all())
    some = step[:, 0] > 0                                           # a dead region explains nothing
    assert torch.allclose((grad8 / step)[some].round(), (grad8 / step)[some], atol=1e-9) and int(some.sum()) > 40
    zero = fl.gradient_oracle(lambda x: 0 * x.sum(1), dim=3).wrap(lambda s: Quantised(s))
    assert torch.equal(zero(x)[1], torch.zeros(50, 3, dtype=torch.float64))


def test_noise_is_gaussian_repeatable_and_fresh_when_independent() -> None:
    f = fl.value_oracle(lambda x: torch.zeros(len(x), 40, dtype=torch.float64), dim=3)
    x = queries(2000)
    sticky = f.wrap(lambda s: Noisy(s, 2.0, seed=4))
    z = sticky(x) / 2.0                                             # (2000, 40)
    assert torch.equal(sticky(x.flip(0)).flip(0) / 2.0, z)           # of the row, not of its place
    assert abs(float(z.mean())) < 5 / math.sqrt(z.numel()) and abs(float(z.std()) - 1) < 0.01
    assert abs(float((z**4).mean()) - 3) < 0.15 and abs(float((z[:, 0] * z[:, 1]).mean())) < 0.1
    assert float((z[:1000] * z[1000:]).mean().abs()) < 0.03
    assert not torch.equal(f.wrap(lambda s: Noisy(s, 2.0, seed=5))(x), 2 * z)
    runs = []
    for _ in range(2):
        fresh = f.wrap(lambda s: Noisy(s, 2.0, seed=4, independent=True))
        runs.append((fresh(x), fresh(x)))
    assert not torch.equal(*runs[0]) and all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert abs(float((runs[0][0] * runs[0][1]).mean())) < 0.1         # asking again averages it away


def test_retries_are_counted_and_end() -> None:
    class Flaky:
        kind, dim, width, dtype, box = "values", 2, 1, torch.float64, None

        def __init__(self, failures: int) -> None:
            self.failures = failures

        def answer(self, x: Tensor) -> Tensor:
            self.failures -= 1
            if self.failures >= 0:
                raise TargetError("busy")
            return x[:, :1]

    pauses: list[float] = []
    f = fl.ValueOracle(Retried(Flaky(2), times=3, pause=1.0, sleep=pauses.append))
    assert f(torch.ones(1, 2)).tolist() == [[1.0]] and pauses == [1.0, 2.0] and f.used == 1
    with pytest.raises(TargetError, match="after 3 retries: busy"):
        fl.ValueOracle(Retried(Flaky(9), times=3, sleep=pauses.append))(torch.ones(1, 2))

    class Wrong(Flaky):
        def answer(self, x: Tensor) -> Tensor:
            self.failures += 1
            raise BadAnswer("NaN")

    wrong = Wrong(0)
    with pytest.raises(BadAnswer):
        fl.ValueOracle(Retried(wrong, sleep=pauses.append))(torch.ones(1, 2))
    assert wrong.failures == 1


def test_a_cache_asks_each_row_once() -> None:
    seen: list[int] = []

    def target(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x.sum(1)

    f = fl.value_oracle(target, dim=2).wrap(Cached)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]], dtype=torch.float64)
    assert f(x)[:, 0].tolist() == [3.0, 7.0, 3.0] and f(x.flip(0))[:, 0].tolist() == [3.0, 7.0, 3.0]
    assert seen == [2] and f.used == 6


WRAPPERS = [lambda s: Rounded(s, 3), lambda s: Noisy(s, 0.1, 3), lambda s: Clipped(s, -2.0, 2.0), Cached,
            lambda s: Quantised(s, 10), lambda s: Retried(s, 2), lambda s: Noisy(s, 0.1, 3, independent=True)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(range(len(WRAPPERS))), max_size=5), st.integers(1, 9), st.booleans())
def test_wrappers_compose_in_any_order(order: list[int], n: int, gradient: bool) -> None:
    def wrapped() -> object:
        source = source_of(net(), "gradient" if gradient else "values")
        for i in order:
            source = WRAPPERS[i](source)
        return (fl.GradientOracle if gradient else fl.ValueOracle)(source)

    one, two = wrapped(), wrapped()
    x = queries(n)
    a, b = one(x), two(x)               # type: ignore[operator]
    if gradient:
        assert a[0].shape == (n,) and a[1].shape == (n, 3) and torch.equal(a[1], b[1])
    else:
        assert a.shape == (n, 2) and torch.equal(a, b) and one.outputs == 2     # type: ignore[attr-defined]
    assert one.used == n                # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [lambda s: Rounded(s, 99), lambda s: Noisy(s, -1.0), lambda s: Noisy(s, float("nan")),
                                  lambda s: Clipped(s, 1.0, 0.0), lambda s: Quantised(s, 0), lambda s: Retried(s, -1)])
def test_nonsense_is_refused(make: object) -> None:
    with pytest.raises(BadInput):
        make(source_of(net(), "values"))            # type: ignore[operator]
    with pytest.raises(BadInput, match="labels"):
        Rounded(source_of(net(), "labels"), 2)
    with pytest.raises(BadInput, match="gradient"):
        LabelOnly(source_of(net(), "gradient"))
