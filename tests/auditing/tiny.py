"""A target small enough to audit in a second: 12-5-1, float64, its rows spanning 5 of 12 dimensions."""

from __future__ import annotations

import torch
from torch import nn


def network() -> nn.Sequential:
    rng = torch.Generator().manual_seed(5)
    net = nn.Sequential(nn.Linear(12, 5, dtype=torch.float64), nn.ReLU(), nn.Linear(5, 1, dtype=torch.float64))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64))
    return net.requires_grad_(False)


TARGET = f"torch:{__file__}:network"


def probability() -> nn.Sequential:
    """The same behind a sigmoid: its labels change at 0.5."""
    return nn.Sequential(*network(), nn.Sigmoid())


PROBABILITY = f"torch:{__file__}:probability"
