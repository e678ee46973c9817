"""Networks whose first layer is a known mixture of known images: the span without the training."""

from functools import cache

import torch
from torch import Tensor, nn

import foldline as fl
from foldline.victims.datasets import load_dataset, subset
from foldline.victims.recipes import preset
from foldline.victims.train import Victim, train_victim

MNIST = (28, 28)


@cache
def mnist(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """n digits and as many unseen ones, raw pixels, float64."""
    found = subset(load_dataset("mnist5k"), n, "binary", rng=fl.generator(seed))
    return found.x, found.x_unseen


def network_of(A: Tensor, *, bias: bool = True, outputs: int = 1, seed: int = 0) -> nn.Sequential:
    """A network with first layer A = [W, b] (h, d + 1) and a random layer above it."""
    h, d = A.shape[0], A.shape[1] - 1
    first, last = nn.Linear(d, h, bias=bias, dtype=torch.float64), nn.Linear(h, outputs, dtype=torch.float64)
    with torch.no_grad():
        first.weight.copy_(A[:, :-1])
        if bias:
            first.bias.copy_(A[:, -1])
        last.weight.copy_(torch.randn(outputs, h, generator=fl.generator(seed), dtype=torch.float64))
        last.bias.zero_()
    return nn.Sequential(first, nn.ReLU(), last)


def mixture(rows: Tensor, h: int = 120, *, noise: float = 0.0, seed: int = 0) -> Tensor:
    """[W, b] (h, d + 1): random combinations of [x, 1], plus noise of this size against a row's own."""
    rng = fl.generator(seed)
    X = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
    A = torch.randn(h, len(rows), generator=rng, dtype=torch.float64) @ X
    return A + noise * A.std() * torch.randn(A.shape, generator=rng, dtype=torch.float64)


def planted(n: int, h: int = 120, *, noise: float = 1e-6,
            seed: int = 0) -> tuple[nn.Sequential, Tensor, Tensor, Tensor]:
    """(network, mean, training rows, unseen rows); rows are raw, the network takes them minus the mean."""
    x, unseen = mnist(n, seed)
    mean = x.mean(0)
    return network_of(mixture(x - mean, h, noise=noise, seed=seed)), mean, x, unseen


@cache
def trained(n: int = 20) -> Victim:
    """d-100-100-1, default start, SGD, strong decay so that a thousand steps forget the start: 3 s."""
    recipe = preset("everyday").recipe.changed(steps=1000, weight_decay=0.02)
    return train_victim("everyday", rng=fl.generator(0), n=n, data_set="mnist5k", recipe=recipe,
                        arguments={"widths": (100, 100)})
