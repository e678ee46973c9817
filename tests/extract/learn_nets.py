"""Networks to learn, how far a copy of one is off, and learning with a budget."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import foldline as fl
from foldline.extract.learn_result import LearnResult
from foldline.networks.one_hidden import Network

D = torch.float64


def make(W: Tensor, b: Tensor, a: Tensor) -> Network:
    a = a.reshape(-1, len(W))
    return Network(W, b, a, torch.zeros(len(a), W.shape[1], dtype=D), torch.zeros(len(a), dtype=D))


def generic(k: int, d: int, seed: int, outputs: int = 1) -> Network:
    g = fl.generator(seed)
    return make(torch.randn(k, d, generator=g, dtype=D) / d**0.5, 0.5 * torch.randn(k, generator=g, dtype=D),
                torch.randn(outputs, k, generator=g, dtype=D))


def bump(width: float, d: int, centre: float = 0.4, height: float = 1.0) -> Network:
    """Example 1.2 along the first axis, scaled to `height`."""
    n = torch.eye(d, dtype=D)[0]
    return make(torch.stack([n, n, 2 * n]), torch.tensor([-centre, -centre - width, -2 * centre - width], dtype=D),
                torch.tensor([1.0, 1.0, -1.0], dtype=D) * 2 * height / width)


def joined(*nets: Network) -> Network:
    return make(torch.cat([n.W for n in nets]), torch.cat([n.b for n in nets]), torch.cat([n.A for n in nets], 1))


def relative(truth: nn.Module, found: nn.Module, d: int, n: int = 40_000) -> float:
    x = torch.randn(n, d, generator=fl.generator(12345), dtype=D)
    y = truth(x)
    return float(((y - found(x)).square().sum(1).mean() / y.var(0).sum()).sqrt())


def learn(target: object, d: int, budget: int = 60_000, seed: int = 0, **options: object) -> LearnResult:
    f = fl.value_oracle(target, budget, dim=d)
    found: LearnResult = fl.learn_from_queries(f, rng=fl.generator(seed), **options)
    assert found.queries == f.used <= budget
    return found


# The search on lines, against a slow twin.
