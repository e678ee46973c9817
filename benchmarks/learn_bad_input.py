"""Claim: bad input ends in a right answer or in a status that names what failed, and noise degrades the error smoothly.

The inputs of docs/learn.md's table, three seeds each; prints status, error and rows, appends rows to the results.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from learn_handover import as_float32
from learn_instances import D, generic, network
from torch import Tensor, nn

import foldline as fl

RESULTS = Path(__file__).parent / "results" / "learn_bad_input.jsonl"
Target = Callable[[Tensor], Tensor]


def constant(value: float, d: int) -> tuple[Target, Target, int]:
    def f(x: Tensor) -> Tensor:
        return torch.full((len(x), 1), value, dtype=D)
    return f, f, d


def linear(seed: int, d: int) -> tuple[Target, Target, int]:
    w = torch.randn(d, 1, generator=fl.generator(seed), dtype=D)

    def f(x: Tensor) -> Tensor:
        return x @ w + 4
    return f, f, d


def heavy_tailed(seed: int) -> tuple[Target, Target, int]:
    base = generic(40, 10, seed)
    size = 10 ** (-6 + 12 * torch.rand(40, generator=fl.generator(seed), dtype=D))
    net = network(base.W * size[:, None], base.b * size, base.A)
    return net, net, 10


def far_biases(seed: int) -> tuple[Target, Target, int]:
    base = generic(20, 10, seed)
    W = base.W / base.W.norm(dim=1, keepdim=True)
    b = base.b.clone()
    b[:5], b[5:8] = -50.0, 50.0
    net = network(W, b, base.A)
    return net, net, 10


def noisy(seed: int, noise: float) -> tuple[Target, Target, int]:
    net, g = generic(20, 10, seed), fl.generator(seed + 50)
    return (lambda x: net(x) + noise * torch.randn(len(x), 1, generator=g, dtype=D)), net, 10


def rounded(seed: int, decimals: int) -> tuple[Target, Target, int]:
    net = generic(20, 10, seed)
    return (lambda x: (net(x) * 10.0**decimals).round() / 10.0**decimals), net, 10


def single(seed: int, k: int, d: int) -> tuple[Target, Target, int]:
    net = generic(k, d, seed)
    return as_float32(net), net, d


def deep(seed: int) -> tuple[Target, Target, int]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1)).double()
    return net, net, 6


def sigmoid(seed: int) -> tuple[Target, Target, int]:
    net = generic(10, 6, seed)
    return (lambda x: net(x).sigmoid()), (lambda x: net(x).sigmoid()), 6


# name: (target, truth and d of a seed, budget)
CASES: dict[str, tuple[Callable[[int], tuple[Target, Target, int]], int]] = {
    "zero": (lambda s: constant(0.0, 10), 50_000), "constant": (lambda s: constant(-1e6 / 3, 10), 50_000),
    "linear": (lambda s: linear(s, 10), 50_000), "norms 1e-6 to 1e6": (heavy_tailed, 50_000),
    "biases of 50": (far_biases, 50_000),
    **{f"noise {e:g}": ((lambda s, e=e: noisy(s, e)), 50_000) for e in (1e-10, 1e-6, 1e-4, 1e-2, 1e-1)},  # type: ignore
    **{f"{r} decimals": ((lambda s, r=r: rounded(s, r)), 50_000) for r in (8, 4, 2)},                     # type: ignore
    "float32, 20 x 10": (lambda s: single(s, 20, 10), 50_000),
    "budget 1,000 for 200 x 10": (lambda s: (generic(200, 10, s), generic(200, 10, s), 10), 1_000),
    "two hidden layers": (deep, 20_000), "a sigmoid": (sigmoid, 20_000),
}


def run(case: str, seed: int) -> dict[str, object]:
    make, budget = CASES[case]
    target, truth, d = make(seed)
    start = time.perf_counter()
    found = fl.learn_from_queries(fl.value_oracle(target, budget, dim=d), rng=fl.generator(seed))
    seconds = time.perf_counter() - start
    x = torch.randn(40_000, d, generator=fl.generator(99), dtype=D)
    with torch.no_grad():
        y = truth(x)
        off, sd = float((y - found.network(x)).square().mean().sqrt()), float(y.std())
    return {"case": case, "seed": seed, "status": found.status.code, "error": off / sd if sd > 1e-9 else off,
            "rows": found.queries, "units": found.units, "handed_over": found.handed_over, "bound":
            found.certificate.bound, "seconds": seconds, "message": str(found.status)[:300]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--cases", default=";".join(CASES))
    options = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    for case in options.cases.split(";"):
        for seed in range(1 if options.quick else options.seeds):
            row = run(case, seed)
            with RESULTS.open("a") as file:
                file.write(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%S"), **row}) + "\n")
            print(f"{case:28}{seed:>3} {row['status']:12}{row['error']:>9.1e}{row['rows']:>8,}{row['units']:>5}"
                  f"{row['seconds']:>7.1f}  {'handed over' if row['handed_over'] else ''}", flush=True)


if __name__ == "__main__":
    main()
