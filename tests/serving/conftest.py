from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from foldline.randomness import generator


def small_net(dtype: torch.dtype = torch.float64, sizes: tuple[int, ...] = (12, 16, 3)) -> nn.Sequential:
    rng = generator(7)
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layer = nn.utils.skip_init(nn.Linear, n_in, n_out, dtype=torch.float64)
        nn.init.normal_(layer.weight, std=n_in ** -0.5, generator=rng)
        nn.init.normal_(layer.bias, generator=rng)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(dtype)


@pytest.fixture
def net() -> nn.Sequential:
    return small_net()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(300, 12, generator=generator(3), dtype=torch.float64)
