"""Networks that the span benchmarks attack, the angle they are judged by, and where rows go.

Random: Gaussian weights, as in the paper (no biases unless asked for). Trained: MNIST, Adam, default initialisation,
converted to float64 after training; kept in the system's temporary folder so that a benchmark can run in parts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import foldline as fl

RESULTS = Path(__file__).parent / "results"


def data_folder() -> Path:
    return Path(os.environ.get("FOLDLINE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def mnist(part: str) -> tuple[Tensor, Tensor]:
    z = np.load(data_folder() / "mnist.npz")
    x = torch.tensor(z[f"x_{part}"].reshape(-1, 784)).float() / 255
    return x, torch.tensor(z[f"y_{part}"].astype("int64"))


def gaussian_net(sizes: list[int], seed: int, *, bias: float = 0.0,
                 activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Weights N(0, 1 / fan-in), biases N(0, bias^2), float64."""
    rng, layers = fl.generator(seed), []
    for a, b in pairwise(sizes):
        layer = nn.Linear(a, b, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(b, a, generator=rng, dtype=torch.float64) / a ** 0.5)
            layer.bias.copy_(bias * torch.randn(b, generator=rng, dtype=torch.float64))
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def mnist_net(sizes: list[int], seed: int, *, epochs: int = 3) -> tuple[nn.Sequential, float]:
    """The network in float64 and its accuracy on the test set."""
    name = f"{'-'.join(map(str, sizes))}-s{seed}-e{epochs}.safetensors"
    file = Path(tempfile.gettempdir()) / "foldline-span-victims" / name
    layers: list[nn.Module] = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        net = nn.Sequential(*layers[:-1])
    if file.exists():
        net.load_state_dict(load_file(file))
    else:
        x, y = mnist("train")
        optimiser, rng = torch.optim.Adam(net.parameters(), lr=1e-3), fl.generator(seed)
        for _ in range(epochs):
            for batch in torch.randperm(len(x), generator=rng).split(128):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
                optimiser.step()
        file.parent.mkdir(exist_ok=True)
        save_file(net.state_dict(), file)
    x, y = mnist("test")
    with torch.no_grad():
        accuracy = float((net(x).argmax(1) == y).double().mean())
    return net.double(), accuracy


def principal(basis: Tensor, W: Tensor) -> Tensor:
    """Sines of the principal angles between the rows of basis and the row space of W, smallest first."""
    if len(basis) == 0:
        return torch.zeros(0)
    Q = torch.linalg.svd(W.detach().double(), full_matrices=False)[2]
    return torch.linalg.svdvals(basis - basis @ Q.T @ Q).flip(0)


def angle(basis: Tensor, W: Tensor) -> float:
    """Largest principal angle's sine: how far the recovered directions stick out of the true span."""
    sines = principal(basis, W)
    return float(sines[-1]) if len(sines) else float("nan")


def arguments(about: str, cases: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--case", choices=cases, action="append", help="only these")
    given = parser.parse_args()
    given.seeds = range(given.first, given.first + (2 if given.quick else given.seeds))
    given.case = given.case or cases
    return given


def record(file: str, row: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    row = {**row, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with (RESULTS / file).open("a") as out:
        out.write(json.dumps(row) + "\n")
