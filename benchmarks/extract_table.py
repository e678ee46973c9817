"""Claim: random one-hidden-layer networks come back exactly near the information limit, and the paper's algorithms,
side by side, need 20 to 40 times as many rows.

python benchmarks/extract_table.py --cases gradients-64-16,values-64-16-1 --seeds 20
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from extract_common import D, function_error, measured, network, record, recorded, row_error, table

import foldline as fl
from foldline.extract.result import parameters

SIZES = ((64, 16), (784, 32), (784, 128), (784, 512), (3072, 1000))
VALUES = {(784, 32, 1): (1.15, 1e-8), (784, 128, 1): (1.15, 1e-8), (64, 16, 1): (1.6, 1e-8), (10, 10, 1): (4.0, 1e-7),
          (10, 40, 1): (4.0, 1e-7), (2, 8, 1): (4.0, 1e-7), (784, 64, 10): (2.5, 1e-8), (64, 16, 10): (2.5, 1e-8)}

Case = tuple[Callable[[int], dict[str, Any]], float, float]       # run(seed), rows allowed, error allowed


def gradients(name: str, d: int, h: int, bias: bool, method: str) -> Callable[[int], dict[str, Any]]:
    def run(seed: int) -> dict[str, Any]:
        net = network(d, h, 1, seed, bias=bias, affine=bias)
        row, found = measured(lambda: fl.extract_from_gradients(
            fl.gradient_oracle(net), rng=fl.generator(seed), method=method,      # type: ignore[arg-type]
            hidden=h if method == "bisection" else None), case=name, seed=seed)
        return scored(row, net, found, d)
    return run


def values(name: str, d: int, h: int, k: int, method: str) -> Callable[[int], dict[str, Any]]:
    def run(seed: int) -> dict[str, Any]:
        net = network(d, h, k, seed, bias=method != "bisection")
        row, found = measured(lambda: fl.extract_from_values(
            fl.value_oracle(net), rng=fl.generator(seed), method=method,         # type: ignore[arg-type]
            hidden=h if method == "bisection" else None), case=name, seed=seed)
        return scored(row, net, found, d)
    return run


def scored(row: dict[str, Any], net: fl.Network, found: Any, d: int) -> dict[str, Any]:
    if found is None:
        return {**row, "error": float("inf"), "row_error": float("inf")}
    x = torch.randn(1000, d, generator=torch.Generator().manual_seed(1), dtype=D)
    return {**row, "error": function_error(net, found.network, x), "row_error": row_error(net, found.network)}


def cases() -> dict[str, Case]:
    out: dict[str, Case] = {}
    for d, h in SIZES:
        out[f"gradients-{d}-{h}"] = (gradients(f"gradients-{d}-{h}", d, h, False, "crossing"), 2.2 * h + 10, 1e-9)
        out[f"gradients-bias-{d}-{h}"] = (gradients(f"gradients-bias-{d}-{h}", d, h, True, "crossing"), 2.5 * h + 15,
                                          1e-9)
        out[f"bisection-{d}-{h}"] = (gradients(f"bisection-{d}-{h}", d, h, False, "bisection"), float("inf"), 1e-9)
    for (d, h, k), (per, error) in VALUES.items():
        name = f"values-{d}-{h}-{k}"
        out[name] = (values(name, d, h, k, "crossing"), per * parameters(h, d, k) / k, error)
    for d, h in ((10, 4), (64, 16)):
        name = f"bisection-mq-{d}-{h}"
        out[name] = (values(name, d, h, 1, "bisection"), float("inf"), 1e-4)
    return out


def main() -> None:
    known = cases()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="comma-separated; default all: " + ", ".join(known))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--quick", action="store_true", help="three seeds, sizes up to 784-32")
    parser.add_argument("--report", action="store_true", help="run nothing: the table of all recorded rows")
    args = parser.parse_args()
    names = args.cases.split(",") if args.cases else list(known)
    if args.quick:
        names = [n for n in names if not any(big in n for big in ("128", "512", "1000"))]
    past = [row for row in recorded("extract_table") if row["case"] in names] if args.report else []
    for name in names:
        run, limit, allowed = known[name]
        rows = [row for row in past if row["case"] == name]
        for seed in range(args.first, args.first + (3 if args.quick else args.seeds)) if not args.report else ():
            rows.append(run(seed))
            record("extract_table", rows[-1:])                       # one by one: a long case may be cut off
        if rows:
            table(rows, "case", lambda _, limit=limit: limit, lambda _, allowed=allowed: allowed)     # type: ignore[misc]


if __name__ == "__main__":
    main()
