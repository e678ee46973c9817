"""Probabilities: told from numbers that merely lie between 0 and 1, and inverted through rounding and noise."""

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.oracles.wrappers import Relay

D = torch.float64


def network(d: int, h: int, k: int, seed: int, link: str = "identity") -> fl.Network:
    rng = torch.Generator().manual_seed(seed)
    W, b, A, q = (torch.randn(*s, generator=rng, dtype=D) for s in ((h, d), (h,), (k, h), (k,)))
    return fl.Network(W / d**0.5, 0.3 * b, A / h**0.5, torch.zeros(k, d, dtype=D), 0.3 * q, link)  # type: ignore[arg-type]


def error(net: nn.Module, found: nn.Module, d: int) -> float:
    x = torch.randn(300, d, generator=torch.Generator().manual_seed(9), dtype=D)
    with torch.no_grad():
        return float((found(x) - net(x).double()).abs().max())


class Single(Relay):
    """Numbers of float32, handed on as float64"""

    def answer(self, x: Tensor) -> Tensor:
        return self.source.answer(x).float().double()


@pytest.mark.parametrize("seed", range(2))
def test_a_sigmoid_that_hardly_bends_is_still_a_sigmoid(seed: int) -> None:
    net = network(10, 5, 1, seed, "sigmoid")
    r = fl.extract_from_values(fl.value_oracle(net, budget=1_000), rng=fl.generator(seed))
    assert r.status.ok and r.units == 5 and r.network.link == "sigmoid"
    assert error(net, r.network, 10) < 1e-5


@pytest.mark.parametrize(("d", "h", "seed"), [(10, 5, 1), (30, 8, 3)])
def test_probabilities_with_all_digits_give_the_network_with_all_digits(d: int, h: int, seed: int) -> None:
    """By steps beside the line alone these ended as `ok` with 1e-6, and with 1e-2 and three units too many."""
    net = network(d, h, 1, seed, "sigmoid")
    r = fl.extract_from_values(fl.value_oracle(net), rng=fl.generator(seed))
    assert r.status.ok and r.units == h and r.certificate.tolerance < 1e-10
    assert error(net, r.network, d) < 1e-11


def test_numbers_between_0_and_1_need_not_be_probabilities() -> None:
    raw = network(8, 4, 1, 3)
    net = fl.Network(raw.W, raw.b, 0.02 * raw.A, raw.P, raw.q * 0 + 0.5)
    for target, allowed in ((net, 1e-8), (lambda x: (net(x) * 1e8).round() / 1e8, 1e-6)):
        r = fl.extract_from_values(fl.value_oracle(target, dim=8), rng=fl.generator(1))
        assert r.status.ok and r.units == 4 and r.network.link == "identity" and error(net, r.network, 8) < allowed


@pytest.mark.parametrize(("k", "link", "decimals"), [(1, "sigmoid", 8), (1, "sigmoid", 6), (1, "sigmoid", 4),
                                                     (4, "softmax", 8), (4, "softmax", 6)])
def test_rounded_probabilities(k: int, link: str, decimals: int) -> None:
    net = network(8, 4, k, 1, link)
    f = fl.value_oracle(lambda x: (net(x) * 10**decimals).round() / 10**decimals, dim=8)
    r = fl.extract_from_values(f, rng=fl.generator(0))
    assert r.status.ok and r.units == 4 and r.network.link == link and "probabilities" in str(r.status)
    assert r.queries <= 6 * (4 * 9 + 5 * k) and r.queries == f.used
    assert error(net, r.network, 8) < 20 * 10.0**-decimals


@pytest.mark.parametrize(("k", "link"), [(1, "identity"), (1, "sigmoid"), (3, "softmax")])
def test_answers_of_float32_are_seen_to_be_such_whatever_the_source_says(k: int, link: str) -> None:
    net = network(10, 5, k, 0, link)
    f = fl.value_oracle(lambda x: net(x).float().double(), dim=10)
    r = fl.extract_from_values(f, rng=fl.generator(0))
    assert f.dtype == D and r.status.ok and r.units == 5 and r.network.link == link
    assert error(net, r.network, 10) < 1e-5


def test_noisy_probabilities() -> None:
    net, rng = network(8, 4, 1, 2, "sigmoid"), torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        return net(x) + 1e-7 * torch.randn(len(x), 1, generator=rng, dtype=D)

    r = fl.extract_from_values(fl.value_oracle(noisy, dim=8), rng=fl.generator(0))
    assert r.status.ok and r.units == 4 and r.network.link == "sigmoid" and error(net, r.network, 8) < 1e-5


@pytest.mark.parametrize("k", [1, 2])
def test_one_output_of_two_classes_is_enough_from_gradients(k: int) -> None:
    net = network(12, 5, k, 4, "sigmoid" if k == 1 else "softmax")
    r = fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(0))
    x = torch.randn(100, 12, generator=torch.Generator().manual_seed(1), dtype=D)
    assert r.status.ok and r.units == 5 and r.network.link == "sigmoid"
    assert float((r.network(x)[:, 0] - net(x)[:, 0]).abs().max()) < 1e-10


@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_gradients_of_float32(link: str) -> None:
    """A sigmoid's curvature was below what short steps show of float32, and a walk on it took a thousand rows."""
    net = network(12, 5, 1, 1, link)
    last = nn.Sigmoid() if link == "sigmoid" else nn.Identity()
    module = nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 1), last)
    for p, value in zip(module.parameters(), (net.W, net.b, net.A, net.q), strict=True):
        p.data = value.float()
    r = fl.extract_from_gradients(fl.gradient_oracle(module, budget=400), rng=fl.generator(1))
    assert r.status.ok and r.units == 5 and r.network.link == link and error(net, r.network, 12) < 1e-5


def test_gradients_of_float32_are_seen_to_be_such_whatever_the_source_says() -> None:
    net = network(12, 5, 1, 0)
    g = fl.gradient_oracle(net, budget=200).wrap(Single)
    assert g.dtype == D
    r = fl.extract_from_gradients(g, rng=fl.generator(0))
    assert r.status.ok and r.units == 5 and r.queries < 40 and error(net, r.network, 12) < 1e-5


def test_a_unit_that_a_short_path_misses_is_found() -> None:
    """Probabilities are asked near zero only: three probes agreed on four units of five, off by 0.08 elsewhere."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 1), nn.Sigmoid())
    with torch.no_grad():
        for p in module[2].parameters():
            p.mul_(2.0 if p.ndim == 2 else 1.0)
    r = fl.extract_from_gradients(fl.gradient_oracle(module.double()), rng=fl.generator(2))
    assert r.status.ok and r.units == 5 and error(module, r.network, 12) < 1e-12
