"""Oracles count before they ask, refuse what they must, and leave the target as it was."""

import pytest
import torch
from torch import nn

import foldline as fl
from foldline.errors import BadAnswer, BadQuery, BudgetExhausted, TargetError


def two_layer() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()


def test_a_budget_is_refused_before_the_call() -> None:
    f = fl.value_oracle(two_layer(), budget=5)
    f(torch.zeros(4, 3))
    with pytest.raises(BudgetExhausted):
        f(torch.zeros(2, 3))
    assert f.used == 4 and f.remaining == 1


def test_gradients_match_finite_differences() -> None:
    net = two_layer()
    g, f = fl.gradient_oracle(net, output=1), fl.value_oracle(net)
    x = torch.randn(1, 3, dtype=torch.float64, generator=fl.generator(0))
    y, grad = g(x)
    steps = 1e-6 * torch.eye(3, dtype=torch.float64)
    assert torch.allclose((f(x + steps)[:, 1] - y) / 1e-6, grad[0], atol=1e-7)


def test_the_module_is_left_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    net[1].eval()
    a, b = fl.gradient_oracle(net)(torch.ones(1, 3)), fl.gradient_oracle(net)(torch.ones(1, 3))
    assert torch.equal(a[1], b[1])
    assert net.training and not net[1].training and net[0].weight.grad is None


@pytest.mark.parametrize("x", [torch.zeros(2, 4), torch.zeros(0, 3), torch.full((1, 3), float("nan")),
                               torch.full((1, 3), float("inf")), torch.zeros(3), torch.zeros(1, 3, dtype=torch.int64)])
def test_bad_queries_cost_nothing(x: torch.Tensor) -> None:
    f = fl.value_oracle(two_layer())
    with pytest.raises(BadQuery):
        f(x)
    assert f.used == 0


def test_bad_answers_are_named() -> None:
    with pytest.raises(BadAnswer, match="NaN"):
        fl.value_oracle(lambda x: x.sum(1) / 0 * 0, dim=2)(torch.zeros(1, 2))

    def raising(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            raise RuntimeError("out of luck")
        return x.sum(1)

    with pytest.raises(TargetError, match="out of luck"):
        fl.value_oracle(raising, dim=2)(torch.zeros(2, 2))
