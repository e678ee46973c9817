"""Answers with few digits: as much as their precision supports, never silently wrong."""

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.extract.least_squares import solve_least_squares
from foldline.extract.noisy_lines import folds_in_noise
from foldline.extract.noisy_repair import solve_missing
from foldline.extract.units import Units

D = torch.float64


def network(d: int, h: int, k: int = 1, seed: int = 0) -> fl.Network:
    rng = torch.Generator().manual_seed(seed)
    W, b, A, q = (torch.randn(*s, generator=rng, dtype=D) for s in ((h, d), (h,), (k, h), (k,)))
    return fl.Network(W / d**0.5, 0.3 * b, A / h**0.5, torch.zeros(k, d, dtype=D), q)


def single(net: fl.Network) -> nn.Module:
    """The network, without an affine term, as a float32 module."""
    module = nn.Sequential(nn.Linear(net.in_features, len(net.W)), nn.ReLU(), nn.Linear(len(net.W), net.out_features))
    for p, value in zip(module.parameters(), (net.W, net.b, net.A, net.q), strict=True):
        p.data = value.float()
    return module


def error(net: nn.Module, found: nn.Module, d: int) -> float:
    x = torch.randn(300, d, generator=torch.Generator().manual_seed(9), dtype=D)
    y = net(x).double()
    return float((found(x) - y).abs().max() / y.abs().max())


@pytest.mark.parametrize(("decimals", "allowed"), [(10, 1e-8), (8, 1e-6), (6, 1e-4)])
def test_rounded_answers_give_what_they_can(decimals: int, allowed: float) -> None:
    net = network(30, 8, seed=3)
    f = fl.value_oracle(lambda x: (net(x) * 10**decimals).round() / 10**decimals, dim=30)
    r = fl.extract_from_values(f, rng=fl.generator(0))
    assert r.status.ok and r.units == 8 and r.noise.kind == "rounded"
    assert error(net, r.network, 30) < allowed
    assert r.queries <= 2.3 * (8 * 31 + 9)


def test_a_float32_target() -> None:
    net = network(30, 8, seed=5)
    r = fl.extract_from_values(fl.value_oracle(single(net)), rng=fl.generator(0))
    exact = fl.Network(*(t.float().double() for t in (net.W, net.b, net.A, net.P, net.q)))
    assert r.status.ok and r.units == 8 and error(exact, r.network, 30) < 1e-4


def test_gaussian_noise() -> None:
    net, rng = network(20, 5, seed=1), torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        return net(x) + 1e-7 * torch.randn(len(x), 1, generator=rng, dtype=D)

    r = fl.extract_from_values(fl.value_oracle(noisy, dim=20), rng=fl.generator(0))
    assert r.status.ok and r.units == 5 and r.noise.kind == "noisy" and error(net, r.network, 20) < 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_two_decimals_are_too_few_and_it_says_so(seed: int) -> None:
    net = network(12, 6, seed=seed)
    r = fl.extract_from_values(fl.value_oracle(lambda x: (net(x) * 100).round() / 100, dim=12), rng=fl.generator(seed))
    off = error(net, r.network, 12)
    size = float(net(torch.randn(300, 12, generator=torch.Generator().manual_seed(9), dtype=D)).abs().max())
    assert r.status.code == "imprecise" or off * size < 10 * r.certificate.tolerance


@pytest.mark.parametrize("seed", [1, 2, 8])
def test_folds_that_four_decimals_hide_on_the_line_are_found_off_it(seed: int) -> None:
    net = network(10, 10, seed=10_000 + seed)
    r = fl.extract_from_values(fl.value_oracle(lambda x: (net(x) * 1e4).round() / 1e4, dim=10), rng=fl.generator(seed))
    assert r.status.ok and r.units == 10 and r.queries <= 4 * 121
    assert error(net, r.network, 10) < 1e-3


def test_a_missing_unit_is_found_where_least_squares_alone_bends_the_others() -> None:
    net, rng = network(6, 5, seed=3), torch.Generator().manual_seed(0)
    x = torch.randn(160, 6, generator=rng, dtype=D)
    whole = Units(net.W, net.b, net.A, net.P, net.q)
    y, sigma = net(x) + 1e-6 * torch.randn(160, 1, generator=rng, dtype=D), torch.full((160,), 1e-6, dtype=D)
    four = whole.keep(torch.arange(5) != int(net.A[0].abs().argsort()[2]))
    assert solve_least_squares(four, x, y, sigma, rounds=60).rms > 1e3
    found = solve_missing(four, x, y, sigma, enough=1.5, rng=rng)
    assert found.rms < 1.5 and len(found.units) == 5
    assert error(net, found.units.network(), 6) < 1e-5


def test_folds_of_a_line_in_noise_are_all_found_in_eight_rows_each() -> None:
    at, a = torch.tensor([-3.0, -0.4, 0.1, 0.5, 9.0], dtype=D), torch.tensor([1.0, -0.5, 2.0, -2.0, 0.3], dtype=D)
    line = folds_in_noise(lambda t: ((torch.relu(t[:, None] - at) @ a)[:, None] * 1e5).round() / 1e5, 1e4,
                          error=lambda t, y: torch.full_like(t, 6e-6), limit=500)
    assert torch.allclose(line.t, at, atol=1e-3) and torch.allclose(line.jump[:, 0], a, atol=1e-3)
    assert len(line.samples[0]) <= 24 + 8 * 5


def test_two_folds_of_a_line_are_told_apart_as_far_as_the_decimals_allow() -> None:
    """As on the first line of 64-16-1, network 10: they were taken for one, and no fit of the rest was possible."""
    at, a = torch.tensor([-2.0, -1.179848, -1.179636, 0.5], dtype=D), torch.tensor([0.3, 0.149, 0.233, -0.7], dtype=D)
    line = folds_in_noise(lambda t: ((torch.relu(t[:, None] - at) @ a)[:, None] * 1e8).round() / 1e8, 1e4,
                          error=lambda t, y: torch.full_like(t, 6e-9), limit=500)
    assert len(line.t) == 4 and torch.allclose(line.t, at, atol=1e-5)
    assert len(line.samples[0]) <= 24 + 9 * 4


@pytest.mark.parametrize("scale", [1e8, 1e-8])
@pytest.mark.parametrize("precision", ["float64", "float32", "rounded"])
def test_the_unit_of_the_answers_does_not_matter(scale: float, precision: str) -> None:
    """A floor of 1e-9 for all scales took float64 for noise at 1e8 and float32 for exact at 1e-8."""
    net = network(20, 6, seed=3)
    net = fl.Network(net.W, net.b, net.A * scale, net.P, net.q * scale)
    target: object = net
    if precision == "float32":
        target = single(net)
        net = fl.Network(*(t.float().double() for t in (net.W, net.b, net.A, net.P, net.q)))
    if precision == "rounded":
        step = 1e-7 * scale
        target = lambda x: (net(x) / step).round() * step            # noqa: E731
    r = fl.extract_from_values(fl.value_oracle(target, dim=20), rng=fl.generator(1))
    allowed = {"float64": 1e-10, "float32": 1e-5, "rounded": 1e-6}[precision]
    assert r.status.ok and r.units == 6 and error(net, r.network, 20) < allowed
    assert r.noise.kind == ("rounded" if precision == "rounded" else "arithmetic")


def test_a_smooth_float32_target_is_not_piecewise_linear() -> None:
    rng = torch.Generator().manual_seed(0)
    W, a = (torch.randn(*s, generator=rng) for s in ((5, 6), (5, 1)))
    f = fl.value_oracle(lambda x: (torch.tanh(x.float() @ W.T) @ a).double(), dim=6)
    r = fl.extract_from_values(f, rng=fl.generator(0))
    assert r.status.code == "not_piecewise_linear" and "noise" in r.status.message and r.queries == f.used


@pytest.mark.parametrize("decimals", [6, 4])
def test_few_decimals_in_a_box_are_said_to_be_few(decimals: int) -> None:
    """The status blamed the network's depth alone."""
    net = network(6, 4, seed=1)
    net = fl.Network(net.W * 3, net.b - 1.5 * net.W.sum(1), net.A, net.P, net.q)
    f = fl.value_oracle(lambda x: (net(x) * 10**decimals).round() / 10**decimals, dim=6, box=(0.0, 1.0))
    r = fl.extract_from_values(f, rng=fl.generator(1))
    assert r.status.code == "imprecise" and "few digits" in r.status.message


@pytest.mark.parametrize("k", [1, 3])
def test_least_squares_by_both_solvers_reaches_the_truth(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(6, 4, k, seed=2)
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=rng, dtype=D)
    off = Units(net.W + 0.01 * torch.randn(4, 6, generator=rng, dtype=D), net.b, net.A, net.P, net.q)
    sigma = torch.ones(200, dtype=D)
    for dense in (10_000, 0):
        monkeypatch.setattr("foldline.extract.least_squares.DENSE", dense)
        fitted = solve_least_squares(off, x, net(x), sigma, rounds=60, tight=True)
        assert fitted.rms < 1e-8
