"""Claim: rounded, noisy and float32 answers give as much as their precision supports, and the status says how much.

"best possible" is the floor: the answers' own error relative to the function, below which nothing can be known.
python benchmarks/extract_precision.py --seeds 20 --sizes 64-16-1,10-4-1
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch
from extract_common import D, function_error, measured, network, record
from torch import nn

import foldline as fl

KINDS = ("exact", "round-10", "round-8", "round-6", "round-4", "noise-1e-8", "float32")


def target(net: fl.Network, kind: str, seed: int) -> Any:
    if kind == "exact":
        return net
    if kind == "float32":
        first, last = nn.Linear(net.in_features, len(net.W)), nn.Linear(len(net.W), net.out_features)
        module = nn.Sequential(first, nn.ReLU(), last)
        for p, value in zip(module.parameters(), (net.W, net.b, net.A, net.q), strict=True):
            p.data = value.float()
        return module
    if kind.startswith("round"):
        scale = 10.0 ** int(kind.split("-")[1])
        return lambda x: (net(x) * scale).round() / scale
    rng = torch.Generator().manual_seed(seed)
    return lambda x: net(x) + 1e-8 * torch.randn(len(x), net.out_features, generator=rng, dtype=D)


def floor(kind: str, size: float) -> float:
    if kind.startswith("round"):
        return 0.5 * 10.0 ** -int(kind.split("-")[1]) / size
    return {"exact": 2.2e-16, "float32": 6e-8, "noise-1e-8": 1e-8 / size}[kind]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="64-16-1,10-4-1")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    print("| size | answers | status | units, mean | rows, mean | error, median (worst) | best possible | ok but off |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in args.sizes.split(","):
        d, h, k = map(int, size.split("-"))
        for kind in args.kinds.split(","):
            rows = []
            for seed in range(args.seeds):
                net = network(d, h, k, seed, bias=True)
                ask = target(net, kind, seed)
                row, found = measured(lambda ask=ask, seed=seed, d=d: fl.extract_from_values(
                    fl.value_oracle(ask, budget=100_000, dim=d), rng=fl.generator(seed)),
                    size=size, kind=kind, seed=seed)
                x = torch.randn(500, d, generator=torch.Generator().manual_seed(1), dtype=D)
                row["error"] = function_error(net, found.network, x) if found is not None else float("inf")
                row["best"] = floor(kind, float(net(x).abs().max()))
                # Silently wrong: ok, yet the function is off by more than the certificate allows.
                allowed = float("inf") if found is None else found.certificate.tolerance / float(net(x).abs().max())
                row["silent"] = row["status"] == "ok" and row["error"] > 10 * allowed
                rows.append(row)
            record("extract_precision", rows)
            errors: list[float] = sorted(float(r["error"]) for r in rows)
            counts = ", ".join(f"{n} {s}" for s, n in Counter(str(r["status"]) for r in rows).items())
            print(f"| {size} | {kind} | {counts} | {sum(r['units'] for r in rows) / len(rows):.1f} "
                  f"| {sum(r['rows'] for r in rows) / len(rows):,.0f} "
                  f"| {errors[len(errors) // 2]:.1e} ({errors[-1]:.1e}) "
                  f"| {max(r['best'] for r in rows):.1e} | {sum(r['silent'] for r in rows)} |", flush=True)


if __name__ == "__main__":
    main()
