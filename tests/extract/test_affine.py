"""Affine models are recovered whole from one gradient or d + 1 values, and nothing else passes for one."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import foldline as fl
from foldline.errors import Refused
from foldline.oracles.defences import Noisy, Rounded


def linear(d: int, k: int, *links: nn.Module, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64,
           ) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(d, k, dtype=dtype), *links)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(std=scale, generator=fl.generator(seed))
    return net


def test_by_hand() -> None:
    def f(x: Tensor) -> Tensor:
        return 3 * x[:, 0] - 2 * x[:, 1] + 5

    for oracle, rows in ((fl.gradient_oracle(f, dim=2), 1), (fl.value_oracle(f, dim=2), 3)):
        found = fl.recover_affine(oracle, rng=fl.generator(0), n_check=7)
        W, _, _, p, q = found.network.units()
        assert found.status.ok and found.queries == rows + 7 == oracle.used and len(W) == 0
        assert torch.allclose(p, torch.tensor([3.0, -2.0]).double(), atol=1e-14) and float(q) == pytest.approx(5.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("links", "link"), [((), "identity"), ((nn.Sigmoid(),), "sigmoid")])
def test_one_gradient_gives_a_linear_or_logistic_model(links: tuple[nn.Module, ...], link: str,
                                                       dtype: torch.dtype) -> None:
    net = linear(784, 1, *links, scale=0.05, dtype=dtype)
    g = fl.gradient_oracle(net)
    found = fl.recover_affine(g, rng=fl.generator(1))
    assert found.status.ok and found.link == link and found.queries == 61
    assert found.certificate.worst < 400 * torch.finfo(dtype).eps and found.certificate.fraction_bound < 0.05
    eps = torch.finfo(dtype).eps
    assert torch.allclose(found.network.P[0], net[0].weight[0].double(), atol=50 * eps)
    assert json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("box", [None, (0.0, 1.0), (-3.0, 7.0)])
@pytest.mark.parametrize(("k", "links", "link"), [
    (1, (), "identity"), (5, (), "identity"), (1, (nn.Sigmoid(),), "sigmoid"), (4, (nn.Softmax(1),), "softmax"),
    (3, (nn.Sigmoid(),), "sigmoid")])
def test_d_plus_one_values_give_every_affine_model(k: int, links: tuple[nn.Module, ...], link: str,
                                                   box: tuple[float, float] | None, dtype: torch.dtype) -> None:
    net = linear(30, k, *links, scale=0.3, dtype=dtype)
    f = fl.value_oracle(net, box=box)
    found = fl.recover_affine(f, rng=fl.generator(1))
    assert found.status.ok and found.link == link, str(found.status)
    assert found.queries == f.used and (found.queries == 91 or box == (-3.0, 7.0))
    truth = net[0].weight.double()
    truth = truth - truth.mean(0) if link == "softmax" else truth       # what a softmax lets one know
    assert torch.allclose(found.network.P, truth.detach(), atol=1e-10 if dtype == torch.float64 else 2e-3)


def test_saturated_models_are_asked_again_where_they_are_not() -> None:
    net = linear(10, 1, nn.Sigmoid(), scale=8.0)
    with torch.no_grad():
        net[0].bias.fill_(1.5)
    found = fl.recover_affine(fl.value_oracle(net), rng=fl.generator(0))
    assert found.status.ok and torch.allclose(found.network.P, net[0].weight.detach(), atol=1e-7)
    with torch.no_grad():
        net[0].bias.fill_(20.0)                                         # p(0) = 1 - 2e-9
    found = fl.recover_affine(fl.gradient_oracle(net), rng=fl.generator(0))
    assert found.status.ok and torch.allclose(found.network.P, net[0].weight.detach(), atol=1e-9)
    assert 62 <= found.queries <= 65


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(linear(6, 5), nn.ReLU(), linear(5, 1, seed=1)),
    lambda: nn.Sequential(linear(6, 5), nn.Tanh(), linear(5, 1, seed=1), nn.Sigmoid()),
    lambda: nn.Sequential(linear(6, 1), nn.ReLU()),
    lambda: nn.Sequential(linear(6, 3), nn.Sigmoid(), linear(3, 1, seed=2)),
])
def test_what_is_not_affine_is_said(make: object) -> None:
    net = make()            # type: ignore[operator]
    for oracle in (fl.gradient_oracle(net), fl.value_oracle(net)):
        found = fl.recover_affine(oracle, rng=fl.generator(0))
        assert found.status.code == "not-affine" and "extract_from" in found.status.message
        assert found.certificate.off > 0 and not found.certificate.holds


def test_a_fold_far_from_the_queries_is_bounded_by_the_certificate() -> None:
    # Affine except where x_0 > 2.5, which 0.6 % of the probes' distribution reaches: the bound must admit that much.
    def f(x: Tensor) -> Tensor:
        return x.sum(1) + 10 * torch.relu(x[:, 0] - 2.5)

    found = fl.recover_affine(fl.value_oracle(f, dim=4), rng=fl.generator(0), n_check=40)
    assert found.certificate.fraction_bound > 0.006
    many = fl.recover_affine(fl.value_oracle(f, dim=4), rng=fl.generator(0), n_check=3000)
    assert many.status.code == "not-affine"


def test_rounded_answers_widen_the_tolerance_and_noise_is_refused() -> None:
    f = fl.value_oracle(linear(8, 2, scale=2.0))
    found = fl.recover_affine(f.wrap(lambda s: Rounded(s, 3)), rng=fl.generator(0))
    assert found.status.ok and 1e-4 < found.certificate.tolerance < 0.1
    noisy = fl.recover_affine(f.wrap(lambda s: Noisy(s, 0.01)), rng=fl.generator(0))
    assert not noisy.status.ok
    told = fl.recover_affine(f.wrap(lambda s: Noisy(s, 0.01)), rng=fl.generator(0), tolerance=0.5)
    assert told.status.ok and told.certificate.tolerance == 0.5


@settings(max_examples=30, deadline=None)
@given(budget=st.integers(0, 40), gradients=st.booleans())
def test_a_budget_is_a_status_with_the_best_so_far(budget: int, gradients: bool) -> None:
    net = linear(9, 1)
    oracle = fl.gradient_oracle(net, budget=budget) if gradients else fl.value_oracle(net, budget=budget)
    found = fl.recover_affine(oracle, rng=fl.generator(0), n_check=12)
    need = 13 if gradients else 22
    assert found.queries == oracle.used <= budget
    assert found.status.ok if budget >= need else found.status.code == "budget"
    known = max(0, min(9, budget - 1)) if not gradients else 9 * (budget > 0)
    assert torch.allclose(found.network.P[0, :known], net[0].weight[0, :known].detach(), atol=1e-12)
    assert not bool(found.network.P[0, known:].any())


def test_bad_calls() -> None:
    with pytest.raises(Refused, match="LabelOracle"):
        fl.recover_affine(fl.label_oracle(linear(3, 1)), rng=fl.generator(0))
    with pytest.raises(ValueError, match="Generator"):
        fl.recover_affine(fl.value_oracle(linear(3, 1)), rng=3)
    with pytest.raises(Refused, match="between 0 and 1"):
        fl.recover_affine(fl.value_oracle(linear(3, 1, scale=5.0)), rng=fl.generator(0), link="sigmoid")
    alone = fl.recover_affine(fl.gradient_oracle(linear(3, 1)), rng=fl.generator(0), n_check=0)
    assert alone.queries == 1 and alone.status.code == "unverified"


@pytest.mark.parametrize("link", ["softmax", "sigmoid", "identity"])
def test_one_gradient_of_each_output_is_enough(link: str) -> None:
    rng = torch.Generator().manual_seed(3)
    P, q = torch.randn(4, 9, generator=rng, dtype=torch.float64), torch.randn(4, generator=rng, dtype=torch.float64)
    none = torch.zeros(0, 9, dtype=torch.float64)
    net = fl.Network(none, none[:, 0], torch.zeros(4, 0, dtype=torch.float64), P, q, link)
    oracles = [fl.gradient_oracle(net, output=o) for o in range(4)]
    found = fl.recover_affine(oracles, rng=fl.generator(0), n_check=0)
    assert found.queries == 4 and found.status.code == "unverified"
    found = fl.recover_affine(oracles, rng=fl.generator(0))
    x = torch.randn(50, 9, generator=rng, dtype=torch.float64)
    assert found.status.ok and found.link == link and torch.allclose(found.network(x), net(x), atol=1e-10)


def test_hidden_units_behind_a_softmax_are_not_affine() -> None:
    rng = torch.Generator().manual_seed(4)
    W, b, A, q = (torch.randn(*s, generator=rng, dtype=torch.float64) for s in ((6, 9), (6,), (3, 6), (3,)))
    net = fl.Network(W, b, A, torch.zeros(3, 9, dtype=torch.float64), q, "softmax")
    found = fl.recover_affine([fl.gradient_oracle(net, output=o) for o in range(3)], rng=fl.generator(0))
    assert found.status.code == "not-affine"
