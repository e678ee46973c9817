"""Small victims that are always at hand, trained on scikit-learn's digits when first asked for."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from foldline.errors import BadSpec
from foldline.randomness import generator

DEMOS = {"digits": (64, 32, 10), "logistic": (64, 10)}
STEPS, RATE, MOMENTUM = 200, 0.3, 0.9


def demo_network(name: str) -> nn.Sequential:
    """digits: 64-32-10 ReLU, logits. logistic: 64-10, probabilities. Pixels in [0, 1], float64."""
    if name not in DEMOS:
        raise BadSpec(f"There is no demo:{name}; the demos are {', '.join(f'demo:{n}' for n in DEMOS)}.")
    return trained(name)


@cache
def trained(name: str) -> nn.Sequential:
    from sklearn.datasets import load_digits
    data = load_digits()
    x = torch.from_numpy(data.data).double() / 16.0                     # (1797, 64)
    labels = torch.from_numpy(data.target).long()                       # (1797,)
    rng = generator(0)
    sizes = DEMOS[name]
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out, dtype=torch.float64)
        nn.init.normal_(layer.weight, std=math.sqrt(2.0 / n_in), generator=rng)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    fit(network, x, labels)
    if name == "logistic":
        network.append(nn.Softmax(1))
    return network.eval().requires_grad_(False)


def fit(network: nn.Module, x: Tensor, labels: Tensor) -> None:
    """Gradient descent with momentum on full batches: nothing is random after the start.

    By hand, since the first use of torch.optim imports for a second and a half.
    """
    parameters = list(network.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    for _ in range(STEPS):
        with torch.enable_grad():
            gradients = torch.autograd.grad(nn.functional.cross_entropy(network(x), labels), parameters)
        with torch.no_grad():
            for p, v, g in zip(parameters, velocity, gradients, strict=True):
                v.mul_(MOMENTUM).sub_(RATE * g)
                p.add_(v)
