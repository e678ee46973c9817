"""recover_span: the row space of the first layer from gradients or values, and its rank by a gap."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import foldline as fl
from foldline.span.rank import decide_rank


def relu_net(sizes: list[int], seed: int, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    rng, layers = fl.generator(seed), []
    for a, b in pairwise(sizes):
        layer = nn.Linear(a, b, dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(b, a, generator=rng, dtype=torch.float64) / a ** 0.5)
            layer.bias.copy_(0.3 * torch.randn(b, generator=rng, dtype=torch.float64))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def angle(basis: torch.Tensor, W: torch.Tensor) -> float:
    """Sine of the largest principal angle between the rows of basis and the row space of W."""
    Q = torch.linalg.svd(W.detach().double(), full_matrices=False)[2]
    return float((basis - basis @ Q.T @ Q).norm(2)) if len(basis) == len(Q) else 1.0


@pytest.mark.parametrize("seed", range(5))
def test_a_deep_net_from_its_rank_plus_two_gradients(seed: int) -> None:
    net = relu_net([100, 20, 15, 10, 8, 1], seed)
    r = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(seed))
    assert r.status.ok and r.rank == 20 and r.queries <= 22
    assert angle(r.basis, net[0].weight) < 1e-8
    assert torch.allclose(r.basis @ r.basis.T, torch.eye(20, dtype=torch.float64), atol=1e-12)
    assert r.gradients.shape == r.points.shape == (r.queries, 100) and r.values.shape == (r.queries,)


def test_from_values_each_gradient_costs_little_more_than_d() -> None:
    net = relu_net([100, 20, 15, 10, 8, 1], 7)
    r = fl.recover_span(fl.value_oracle(net), rng=fl.generator(7))
    assert r.status.ok and r.rank == 20 and angle(r.basis, net[0].weight) < 1e-6


def test_no_gap_where_there_is_none() -> None:
    decision = decide_rank(torch.logspace(0, -6, 60, dtype=torch.float64), floor=1e-15)
    assert not decision.gap_found and decision.rank == 60


def test_a_flat_tail_below_a_gap_is_not_counted() -> None:
    s = torch.cat([torch.logspace(1, -4, 50), 1e-7 * torch.linspace(3, 1, 20)]).double()
    decision = decide_rank(s, floor=1e-15)
    assert decision.rank == 50 and decision.kind == "tail" and decision.p_value < 1e-3
