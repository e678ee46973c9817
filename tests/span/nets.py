"""Networks small enough to reason about, and the angle between what was found and what is there."""

from itertools import pairwise

import torch
from torch import Tensor, nn

import foldline as fl


def deep_net(sizes: list[int], seed: int, *, activation: type[nn.Module] = nn.ReLU, bias: float = 0.3) -> nn.Sequential:
    rng, layers = fl.generator(seed), []
    for a, b in pairwise(sizes):
        layer = nn.Linear(a, b, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(b, a, generator=rng, dtype=torch.float64) / a ** 0.5)
            layer.bias.copy_(bias * torch.randn(b, generator=rng, dtype=torch.float64))
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def angle(basis: Tensor, W: Tensor) -> float:
    """Sine of the largest principal angle between two row spaces of the same dimension; 1 where those differ."""
    Q = torch.linalg.svd(W.detach().double(), full_matrices=False)[2]
    return float((basis - basis @ Q.T @ Q).norm(2)) if len(basis) == len(Q) else 1.0
