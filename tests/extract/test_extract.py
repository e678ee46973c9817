"""Whole networks back, exactly, from few rows; hard and wrong targets end in the right status."""

import pytest
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.randomness import Streams

D = torch.float64


def network(d: int, h: int, k: int = 1, *, seed: int = 0, bias: bool = True, affine: bool = False) -> fl.Network:
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=D)

    W, b, A = normal(h, d) / d**0.5, 0.3 * normal(h), normal(k, h)
    P, q = normal(k, d) / d**0.5, normal(k)
    return fl.Network(W, b * bias, A, P * affine, q * bias)


def error(net: nn.Module, found: nn.Module, d: int) -> float:
    x = torch.randn(300, d, generator=torch.Generator().manual_seed(9), dtype=D)
    with torch.no_grad():
        y = net(x)
        return float((found(x) - y).abs().max() / y.abs().max())


def row_error(net: fl.Network, found: fl.Network) -> float:
    W, R = net.W / net.W.norm(dim=1, keepdim=True), found.W
    cos = W @ R.T
    best = cos.abs().argmax(1)
    return float((W - R[best] * cos.gather(1, best[:, None]).sign()).norm(dim=1).max())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_at_two_rows_per_unit(bias: bool, seed: int) -> None:
    net = network(64, 16, seed=seed, bias=bias, affine=bias)
    r = fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(seed))
    assert r.status.ok and r.units == 16 and r.certificate.holds
    assert r.queries <= (2.5 * 16 + 15 if bias else 2.2 * 16 + 10)
    assert error(net, r.network, 64) < 1e-9 and row_error(net, r.network) < 1e-9
    assert r.affine_free is not bias and r.assumptions.held


@pytest.mark.parametrize(("d", "h", "k", "per"), [(64, 16, 1, 1.6), (10, 10, 1, 4.0), (10, 40, 1, 4.0), (2, 8, 1, 4.0),
                                                  (64, 16, 10, 2.5), (100, 12, 1, 1.3)])
def test_values_near_one_row_per_parameter(d: int, h: int, k: int, per: float) -> None:
    net = network(d, h, k, seed=1)
    f = fl.value_oracle(net)
    r = fl.extract_from_values(f, rng=fl.generator(1))
    assert r.status.ok and r.units == h and r.queries == f.used
    assert r.queries <= per * (h * (d + 1) + k * (h + 1)) / k
    assert error(net, r.network, d) < (1e-8 if d >= 64 else 1e-7)
    assert r.signs_unique is (h <= d) and (h > d or r.affine_free)


@pytest.mark.parametrize("seed", range(2))
def test_a_weak_unit_far_out_costs_the_others_neither_rows_nor_digits(seed: int) -> None:
    x0, u = torch.randn(2, 60, generator=Streams(fl.generator(seed))("line"), dtype=D)        # the first line's
    net = network(60, 24, seed=100 + seed)
    W, A = net.W.clone(), net.A.clone()
    for i, t in enumerate((-140.0, -125.0, -100.0)):                 # where the folds of three units shall lie
        W[i] -= u * (W[i] @ u + (W[i] @ x0 + net.b[i]) / t) / (u @ u + x0 @ u / t)
    A[0, 1] *= 1e-5
    net = fl.Network(W, net.b, A, net.P, net.q)
    r = fl.extract_from_values(fl.value_oracle(net), rng=fl.generator(seed))
    assert r.status.ok and r.units == 24 and r.lines_used == 1
    assert error(net, r.network, 60) < 1e-8


@pytest.mark.parametrize("seed", [0, 1, 6])
def test_weak_units_among_rows_that_are_alike_cost_few_gradients(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=D)

    common = normal(6, 120)                                          # rows have a common part, as training makes them
    W, A = (normal(48, 120) + 1.5 * normal(48, 6) @ common) / 120**0.5, normal(1, 48)
    A[0, :6] *= 0.01
    net = fl.Network(W, 0.3 * normal(48), A, torch.zeros(1, 120, dtype=D), normal(1))
    r = fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(seed))
    assert r.status.ok and r.units == 48 and r.queries <= 2.5 * 48 + 15
    assert error(net, r.network, 120) < 1e-9


def test_more_outputs_cost_less() -> None:
    rows = [fl.extract_from_values(fl.value_oracle(network(40, 12, k, seed=3)), rng=fl.generator(0)).queries
            for k in (1, 3, 8)]
    assert rows[0] > 1.5 * rows[1] > 2 * rows[2]


def both(net: nn.Module, d: int, **more: object) -> list[object]:
    return [fl.extract_from_gradients(fl.gradient_oracle(net, dim=d), rng=fl.generator(1), **more),
            fl.extract_from_values(fl.value_oracle(net, dim=d), rng=fl.generator(1), **more)]


def test_duplicate_and_opposite_units_become_one() -> None:
    base = network(12, 6, seed=5)
    for s in (1.0, -1.0):
        net = fl.Network(torch.cat([base.W, s * base.W[:1]]), torch.cat([base.b, s * base.b[:1]]),
                         torch.cat([base.A, 0.5 * base.A[:, :1]], 1), base.P, base.q)
        for r in both(net, 12):
            assert r.status.ok and r.units == 6 and error(net, r.network, 12) < 1e-8


@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("weight", [0.7, -0.7])
def test_nearly_parallel_pairs(angle: float, weight: float) -> None:
    base = network(12, 6, seed=5)
    turn = torch.randn(1, 12, generator=torch.Generator().manual_seed(2), dtype=D)
    net = fl.Network(torch.cat([base.W, base.W[:1] + angle * turn]), torch.cat([base.b, base.b[:1]]),
                     torch.cat([base.A, weight * base.A[:, :1]], 1), base.P, base.q)
    g, v = both(net, 12)
    assert g.status.ok and g.units == 7 and error(net, g.network, 12) < 1e-9
    assert v.status.ok and error(net, v.network, 12) < 1e-8


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("weight", [0.7, -0.7, -1.0])
def test_pairs_at_1e_8_are_right_or_the_status_says_so(weight: float, side: float) -> None:
    base = network(12, 6, seed=5)
    turn = torch.randn(1, 12, generator=torch.Generator().manual_seed(2), dtype=D)
    net = fl.Network(torch.cat([base.W, side * (base.W[:1] + 1e-8 * turn)]), torch.cat([base.b, side * base.b[:1]]),
                     torch.cat([base.A, weight * base.A[:, :1]], 1), base.P, base.q)
    for r in both(net, 12):
        off = error(net, r.network, 12)
        assert off < 1e-9 or (off < 1e-6 and ("nearly cancel" in str(r.status) or not r.status.ok))


def test_constant_and_linear_functions() -> None:
    zero = torch.zeros(0, 5, dtype=D)
    for P in (torch.zeros(1, 5), torch.ones(1, 5)):
        net = fl.Network(zero, zero[:, 0], zero[:, :1].T, P, torch.ones(1))
        for r in both(net, 5):
            assert r.status.ok and r.units == 0 and r.queries <= 40 and error(net, r.network, 5) < 1e-9


def test_what_is_not_one_hidden_layer_says_so() -> None:
    torch_rng = torch.random.fork_rng()
    with torch_rng:
        torch.manual_seed(0)
        smooth = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)).double()
        deep = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    for r in both(smooth, 8):
        assert r.status.code == "not_piecewise_linear" and r.queries <= 20
    r = fl.extract_from_gradients(fl.gradient_oracle(deep), rng=fl.generator(1))
    assert r.status.code == "not_one_hidden_layer" and not r.certificate.holds
    r = fl.extract_from_values(fl.value_oracle(deep, budget=6000), rng=fl.generator(1))
    assert not r.status.ok


def test_a_budget_is_a_status_with_the_best_so_far() -> None:
    net = network(20, 8)
    for budget in (1, 7, 30, 100):
        f, g = fl.value_oracle(net, budget=budget), fl.gradient_oracle(net, budget=min(budget, 12))
        assert fl.extract_from_values(f, rng=fl.generator(0)).status.code == "budget" and f.used <= budget
        assert fl.extract_from_gradients(g, rng=fl.generator(0)).status.code == "budget"


def test_no_query_leaves_the_box() -> None:
    net = network(6, 8, seed=2)                     # the oracle itself refuses a row outside
    net = fl.Network(net.W * 3, net.b - 1.5 * net.W.sum(1), net.A, net.P, net.q)
    x = torch.rand(300, 6, generator=torch.Generator().manual_seed(1), dtype=D)
    g = fl.extract_from_gradients(fl.gradient_oracle(net, box=(0.0, 1.0)), rng=fl.generator(0))
    v = fl.extract_from_values(fl.value_oracle(net, box=(0.0, 1.0)), rng=fl.generator(0))
    for r in (g, v):
        assert not r.status.ok or float((r.network(x) - net(x)).abs().max()) < 1e-6 * float(net(x).abs().max())
    assert g.status.ok


def test_links_are_inverted() -> None:
    rng = torch.Generator().manual_seed(0)
    W = torch.randn(3, 6, generator=rng, dtype=D)
    none = torch.zeros(0, 6, dtype=D)
    multinomial = fl.Network(none, none[:, 0], none[:, :3].T, W, torch.randn(3, generator=rng), "softmax")
    logistic = fl.Network(none, none[:, 0], none[:, :1].T, W[:1], torch.ones(1), "sigmoid")
    r = fl.extract_from_values(fl.value_oracle(multinomial), rng=fl.generator(0))
    assert r.status.ok and r.network.link == "softmax" and error(multinomial, r.network, 6) < 1e-9
    r = fl.extract_from_gradients(fl.gradient_oracle(logistic), rng=fl.generator(0))
    assert r.status.ok and error(logistic, r.network, 6) < 1e-9 and "after one row" in str(r.status)
    r = fl.extract_from_gradients(fl.gradient_oracle(multinomial), rng=fl.generator(0))
    assert r.status.code == "not_piecewise_linear" and "one gradient of each output" in str(r.status)
    hidden = network(8, 5, seed=4)
    net = fl.Network(hidden.W, hidden.b, 0.4 * hidden.A, hidden.P, hidden.q * 0, "sigmoid")
    for r in both(net, 8):
        assert r.status.ok and r.units == 5 and error(net, r.network, 8) < 1e-8


def test_rescaled_and_permuted_units_are_the_same_answer() -> None:
    net = network(16, 6, seed=7)
    order, scale = torch.randperm(6, generator=torch.Generator().manual_seed(0)), torch.logspace(-2, 2, 6, dtype=D)
    other = fl.Network((net.W * scale[:, None])[order], (net.b * scale)[order], (net.A / scale)[:, order], net.P, net.q)
    first, second = (fl.extract_from_gradients(fl.gradient_oracle(n), rng=fl.generator(3)) for n in (net, other))
    assert first.queries == second.queries
    assert row_error(first.network, second.network) < 1e-9


def test_results_are_json_and_reload(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import json
    net = network(6, 3)
    r = fl.extract_from_values(fl.value_oracle(net), rng=fl.generator(0))
    json.dumps(r.to_dict(), allow_nan=False)
    fl.save(r.network, tmp_path / "stolen.safetensors")
    again = fl.extract_from_values(fl.value_oracle(f"weights:{tmp_path / 'stolen.safetensors'}"), rng=fl.generator(0))
    assert again.status.ok and error(net, again.network, 6) < 1e-7


def test_the_published_algorithm_and_its_failure() -> None:
    net = network(16, 4, bias=False)
    r = fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(0), method="bisection", hidden=4)
    assert r.status.ok and error(net, r.network, 16) < 1e-9 and r.queries > 20 * 4
    r = fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(0), method="bisection", hidden=6)
    assert r.status.code == "failure"
    biased = network(16, 4)
    r = fl.extract_from_gradients(fl.gradient_oracle(biased), rng=fl.generator(0), method="bisection", hidden=4)
    assert r.status.code == "failure"
    with pytest.raises(ValueError, match="hidden"):
        fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(0), method="bisection")


def test_rounded_answers_are_never_silently_wrong() -> None:
    net = network(10, 4, seed=2)
    for decimals in (10, 8, 6):
        def rounded(x: Tensor, r: int = decimals) -> Tensor:
            return (net(x) * 10**r).round() / 10**r
        r = fl.extract_from_values(fl.value_oracle(rounded, dim=10), rng=fl.generator(0))
        off = error(net, r.network, 10)
        assert not r.status.ok or off < 1e4 * 10.0**-decimals
