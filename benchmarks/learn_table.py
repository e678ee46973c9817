"""Claim: degenerate one-hidden-layer networks are learnt within the error and the rows of the issue's table.

Beside it: the bisection of paper 000 and a plain regression (an MLP of 4k units on as many Gaussian rows as the
learner asked). Failures are rows.  python benchmarks/learn_table.py --seeds 20 --methods learn --cases clusters,bump1
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from learn_instances import bump, cancelling, clusters, generic, parameters, relative_error, trained

import foldline as fl
from foldline.networks.one_hidden import Network

RESULTS = Path(__file__).parent / "results" / "learn_table.jsonl"

# name: (network of a seed, relative error at most, rows at most (a factor is per parameter))
CASES: dict[str, tuple[Callable[[int], Network], float, float]] = {
    "generic": (lambda s: generic(32, 100, s), 1e-8, 1.2),
    "clusters": (clusters, 1e-3, 300_000),
    "cancelling": (cancelling, 1e-3, 300_000),
    "steps": (lambda s: cancelling(s, steps_only=True), 1e-3, 300_000),
    "over": (lambda s: generic(200, 10, s), 1e-3, 300_000),
    "bump1": (lambda s: bump(s, 1), 1e-2, 500_000),
    "bump10": (lambda s: bump(s, 10), 1e-2, 500_000),
    "bump1-alone": (lambda s: bump(s, 1, k=0), 1e-2, 500_000),
    "bump10-alone": (lambda s: bump(s, 10, k=0), 1e-2, 500_000),
    "trained": (trained, 1e-3, 2.0),
    "trained-10": (lambda s: trained(s, outputs=10), 1e-3, 2.0),
}


def learn(net: Network, rows: int, seed: int) -> tuple[torch.nn.Module, int, str]:
    found = fl.learn_from_queries(fl.value_oracle(net, budget=rows), rng=fl.generator(seed))
    return found.network, found.queries, found.status.code


def bisect(net: Network, rows: int, seed: int) -> tuple[torch.nn.Module, int, str]:
    found = fl.extract_from_values(fl.value_oracle(net, budget=rows), method="bisection", hidden=len(net.W),
                                   rng=fl.generator(seed))
    return found.network, found.queries, found.status.code


MLP_SECONDS = 10.0


def regress(net: Network, rows: int, seed: int, seconds: float = MLP_SECONDS) -> tuple[torch.nn.Module, int, str]:
    """Adam with a falling step on an MLP of 4k units, in float64, on Gaussian rows; `seconds` of processor time."""
    g = fl.generator(seed)
    d, m, k = net.in_features, net.out_features, 4 * len(net.W)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        mlp = torch.nn.Sequential(torch.nn.Linear(d, k), torch.nn.ReLU(), torch.nn.Linear(k, m)).double()
    x = torch.randn(rows, d, generator=g, dtype=torch.float64)
    y = net(x)
    middle, scale = y.mean(0), y.std()
    target = (y - middle) / scale
    optimiser = torch.optim.Adam(mlp.parameters(), lr=3e-3)
    start, spent = time.process_time(), 0.0
    while spent < 1:
        spent = min(1.0, (time.process_time() - start) / seconds)
        optimiser.param_groups[0]["lr"] = 3e-3 * (1 - spent) + 1e-6
        for part in torch.randperm(rows, generator=g).split(256)[:200]:
            loss = (mlp(x[part]) - target[part]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    class Scaled(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                out: torch.Tensor = mlp(z) * scale + middle
            return out
    return Scaled(), rows, "trained"


METHODS = {"learn": learn, "bisection": bisect, "mlp": regress}


def run(case: str, method: str, seed: int) -> dict[str, object]:
    make, error_limit, row_limit = CASES[case]
    net = make(seed)
    limit = int(row_limit * parameters(net)) if row_limit < 100 else int(row_limit)
    rows = limit
    if method == "mlp":
        rows = learn(net, 2 * limit, seed)[1]                       # as many as the learner asked
    start = time.perf_counter()
    try:
        found, asked, status = METHODS[method](net, rows, seed)
        seconds = time.perf_counter() - start
        error = relative_error(net, found, 100_000 if method == "mlp" or net.W.numel() > 1_500 else 400_000)
    except Exception as problem:                                    # a failure is a row
        seconds = time.perf_counter() - start
        asked, status, error = 0, f"{type(problem).__name__}: {problem}"[:120], float("nan")
    return {"case": case, "method": method, "seed": seed, "status": status, "relative_error": error, "rows": asked,
            "rows_per_parameter": asked / parameters(net), "seconds": seconds,
            "met": bool(error <= error_limit and asked <= limit and seconds <= 120)}


def summary(rows: list[dict[str, object]]) -> None:
    print(f"{'case':14}{'method':10}{'met':>8}{'median error':>14}{'worst':>10}{'rows':>20}{'per param.':>12}{'s':>8}")
    for case in CASES:
        for method in METHODS:
            some = [r for r in rows if r["case"] == case and r["method"] == method]
            if not some:
                continue
            errors = sorted(float(r["relative_error"]) if r["relative_error"] == r["relative_error"] else float("inf")
                            for r in some)                          # type: ignore[arg-type]
            asked = [int(r["rows"]) for r in some]                  # type: ignore[call-overload]
            per = max(float(r["rows_per_parameter"]) for r in some)     # type: ignore[arg-type]
            seconds = max(float(r["seconds"]) for r in some)        # type: ignore[arg-type]
            print(f"{case:14}{method:10}{sum(bool(r['met']) for r in some):>4}/{len(some):<3}"
                  f"{errors[len(errors) // 2]:>14.1e}{errors[-1]:>10.1e}{min(asked):>10,}-{max(asked):<9,}{per:>12.3f}"
                  f"{seconds:>8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="first seed; the rules were chosen on 0 to 19")
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--methods", default="learn")
    options = parser.parse_args()
    rows = []
    RESULTS.parent.mkdir(exist_ok=True)
    for case in options.cases.split(","):
        for method in options.methods.split(","):
            for seed in range(options.first, options.first + (2 if options.quick else options.seeds)):
                row = run(case, method, seed)
                rows.append(row)
                with RESULTS.open("a") as file:
                    file.write(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%S"), **row}) + "\n")
                print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), flush=True)
    summary(rows)


if __name__ == "__main__":
    main()
