"""What the HTTP benchmarks share: a network of the demo victim's shape, and rows of results."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foldline.randomness import generator

RESULTS = Path(__file__).parent / "results"
DIM = 784


def victim_network(dtype: torch.dtype = torch.float32, sizes: tuple[int, ...] = (DIM, 300, 300, 1)) -> nn.Sequential:
    """784-300-300-1, as the embedded audit serves it; speed and faults do not depend on the weights."""
    rng = generator(0)
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layer = nn.utils.skip_init(nn.Linear, n_in, n_out, dtype=torch.float64)
        nn.init.normal_(layer.weight, std=(2 / n_in) ** 0.5, generator=rng)
        nn.init.normal_(layer.bias, std=0.1, generator=rng)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(dtype).requires_grad_(False)


def record(name: str, **row: Any) -> None:
    RESULTS.mkdir(exist_ok=True)
    stamped = {"at": time.strftime("%Y-%m-%dT%H:%M:%S"), **row}
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(stamped) + "\n")


def table(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    cells = [[f"{r[n]:,.4g}" if type(r[n]) is float else f"{r[n]:,}" if type(r[n]) is int else str(r[n])
              for n in names] for r in rows]
    widths = [max(len(n), *(len(c[i]) for c in cells)) for i, n in enumerate(names)]
    for line in (names, ["-" * w for w in widths], *cells):
        print("  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True)))
