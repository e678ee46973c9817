"""A target whose first layer is made of twelve digits: 784-40-30-1, every row of it a mixture of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TRAIN, UNSEEN, PUBLIC = slice(0, 12), slice(12, 24), slice(24, 100)


def digits() -> Tensor:
    """(100, 784), ten of each digit, mixed"""
    from foldline.victims.datasets import load_dataset
    found = load_dataset("mnist5k")
    return torch.stack([found.rows(found.y == c)[i] for i in range(10) for c in range(10)])


def network() -> nn.Sequential:
    rng = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Linear(784, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64))
        first = net[0].weight
        assert isinstance(first, Tensor)
        first.copy_(torch.randn(40, 12, generator=rng, dtype=torch.float64) @ digits()[TRAIN])
    return net.requires_grad_(False)


TARGET = f"torch:{__file__}:network"
