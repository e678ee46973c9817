"""recover_span_from_labels: normals of the boundary, found and confirmed by moves that should change nothing."""

import pytest
import torch
from torch import nn

import foldline as fl
from foldline.errors import BadInput
from foldline.span.boundary import Crossings, bisect_segments
from foldline.span.normals import Normal, measure_normal

from .nets import angle, deep_net


@pytest.mark.parametrize("seed", range(3))
def test_a_smooth_network_thresholded(seed: int) -> None:
    net = deep_net([20, 5, 8, 1], seed, activation=nn.Tanh, bias=0.1)
    r = fl.recover_span_from_labels(fl.label_oracle(net), rng=fl.generator(seed))
    assert r.status.ok and r.rank == 5 and r.queries <= 60 * 20 * 5
    assert angle(r.basis, net[0].weight) < 1e-4


@pytest.mark.parametrize("seed", range(2))
def test_a_relu_network_thresholded(seed: int) -> None:
    net = deep_net([100, 10, 20, 1], seed, bias=0.1)
    r = fl.recover_span_from_labels(fl.label_oracle(net), rng=fl.generator(seed))
    assert r.status.ok and r.rank == r.upper_bound == 10 and r.queries <= 60 * 100 * 10
    assert angle(r.basis, net[0].weight) < 1e-6                     # the boundary is piecewise linear: exact normals


def test_many_classes() -> None:
    net = deep_net([60, 6, 12, 7], 0)
    r = fl.recover_span_from_labels(fl.label_oracle(net), rng=fl.generator(0))
    assert r.status.ok and r.rank == 6 and angle(r.basis, net[0].weight) < 1e-6


def test_a_linear_classifier_shows_differences_of_its_rows() -> None:
    net = deep_net([20, 4], 0)
    r = fl.recover_span_from_labels(fl.label_oracle(net), rng=fl.generator(0))
    W = net[0].weight.detach()
    assert r.status.ok and r.rank == 3 and angle(r.basis, W[1:] - W[:1]) < 1e-8


def test_float32_and_dead_inputs() -> None:
    net = deep_net([30, 4, 8, 3], 1)
    net[0].weight.data[:, ::3] = 0
    r = fl.recover_span_from_labels(fl.label_oracle(net.float()), rng=fl.generator(0))
    assert r.status.ok and r.rank == 4 and angle(r.basis, net[0].weight) < 1e-2
    assert float(r.basis[:, ::3].abs().max()) < 1e-2


def test_one_class_only_ends_after_a_stated_search() -> None:
    lb = fl.label_oracle(lambda x: x[:, :1] * 0 + 3.0, dim=10)
    r = fl.recover_span_from_labels(lb, rng=fl.generator(0))
    assert r.status.code == "one_class" and r.rank == 0 and str(r.queries) in r.status.message


def test_the_other_class_may_be_given() -> None:
    w = torch.randn(10, generator=fl.generator(1), dtype=torch.float64)
    far = 1e6 * w / w.square().sum()
    lb = fl.label_oracle(lambda x: (x @ w)[:, None] - 1e6 + 1, dim=10)
    assert fl.recover_span_from_labels(lb, rng=fl.generator(0)).status.code == "one_class"
    r = fl.recover_span_from_labels(lb, data=torch.stack([far, 0 * far]), rng=fl.generator(0))
    assert r.rank == 1 and angle(r.basis, w[None]) < 1e-6


@pytest.mark.parametrize("noise", [10.0, 1e-2])
def test_labels_that_change_are_named(noise: float) -> None:
    net, rng = deep_net([30, 4, 8, 1], 1), fl.generator(7)
    lb = fl.label_oracle(lambda x: net(x) + noise * torch.randn(len(x), 1, generator=rng, dtype=torch.float64), dim=30)
    r = fl.recover_span_from_labels(lb, rng=fl.generator(0))
    assert r.status.code == "nondeterministic" and r.rank == 0


def test_full_rank_says_so() -> None:
    r = fl.recover_span_from_labels(fl.label_oracle(deep_net([6, 12, 8, 1], 0, bias=0.05)), rng=fl.generator(0))
    assert r.status.ok and r.rank == 6 and "no null space" in r.status.message


def test_a_budget_is_kept() -> None:
    net = deep_net([30, 4, 8, 1], 1)
    for budget, rank in ((0, 0), (3000, 2)):
        lb = fl.label_oracle(net, budget=budget)
        r = fl.recover_span_from_labels(lb, rng=fl.generator(0))
        assert r.status.code == "budget" and r.rank == rank and r.queries <= budget and r.upper_bound == 30


def test_inside_a_box() -> None:
    net = deep_net([30, 4, 8, 3], 3, bias=0.0)
    net[0].bias.data = -net[0].weight.data.sum(1) / 2           # folds and boundary through the middle of the box
    r = fl.recover_span_from_labels(fl.label_oracle(net, box=(0.0, 1.0)), rng=fl.generator(0))
    assert r.rank == 4 and angle(r.basis, net[0].weight) < 1e-6



def test_a_point_where_folds_meet_is_noticed() -> None:
    """label = [max(a . x, b . x) >= 0] has a kink along a . x = b . x = 0: normals there are neither a nor b."""
    d, rng = 12, fl.generator(0)
    a, b, x = (torch.randn(d, generator=rng, dtype=torch.float64) for _ in range(3))
    for w in torch.linalg.qr(torch.stack([a, b]).T)[0].T:           # a point on the kink, away from the origin
        x = x - (x @ w) * w
    v = (a / a.norm() + b / b.norm())
    v = v / v.norm()
    E = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64))[0].T
    lb = fl.label_oracle(lambda z: torch.maximum(z @ a, z @ b), dim=d)
    on_kink = Crossings(x[None], v[None], torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    normal = measure_normal(lb, on_kink, 0, E, rng=fl.generator(1))
    assert isinstance(normal, str) or not normal.good
    smooth = fl.label_oracle(lambda z: z @ a, dim=d)
    clean = measure_normal(smooth, on_kink, 0, E, rng=fl.generator(1))
    assert isinstance(clean, Normal) and clean.good
    assert float(1 - (clean.w @ a / a.norm()).abs()) < 1e-12


def test_bisection_finds_the_last_bits_of_every_segment() -> None:
    w = torch.tensor([3.0, -1.0], dtype=torch.float64)
    lb = fl.label_oracle(lambda x: x @ w - 1.0, dim=2)
    a = torch.tensor([[0.0, 0.0], [-1.0, 2.0]], dtype=torch.float64)
    at = bisect_segments(lb, a, a + 2 * torch.eye(2, dtype=torch.float64)[:1], torch.tensor([0, 0]))
    assert lb.used == 2 * 52
    crossing = at.x + at.width[:, None] * at.v
    assert float((crossing @ w - 1).abs().max()) < 1e-14


def test_algorithm_two_on_a_network_that_meets_its_assumptions() -> None:
    """No biases, and every projection of the network still exceeds the threshold somewhere: weights are large."""
    net = deep_net([20, 3, 8, 1], 0, activation=nn.Tanh, bias=0.0)
    for layer in (net[0], net[2], net[4]):
        layer.weight.data *= 4
    lb = fl.label_oracle(net, threshold=1.0)
    r = fl.recover_span_from_labels(lb, method="paper", k=3, rng=fl.generator(0))
    assert r.status.ok and r.rank == 3 and angle(r.basis, net[0].weight) < 1e-3


def test_caller_mistakes_are_sentences() -> None:
    lb = fl.label_oracle(deep_net([20, 3, 1], 0))
    with pytest.raises(BadInput, match="needs k"):
        fl.recover_span_from_labels(lb, method="paper", rng=fl.generator(0))
    with pytest.raises(BadInput, match="between 1 and the 20"):
        fl.recover_span_from_labels(lb, k=21, rng=fl.generator(0))
    with pytest.raises(BadInput, match="label oracle"):
        fl.recover_span_from_labels(fl.value_oracle(deep_net([20, 3, 1], 0)), rng=fl.generator(0))
    assert lb.used == 0
