"""Claim: networks behind a sigmoid or a softmax come back from probabilities of any precision, or the status says no.

Errors are of the probabilities. In a box ("-box") few digits are beyond the method: the status must say so.
python benchmarks/extract_links.py --seeds 5 --kinds exact,round-8
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch
from extract_common import D, measured, record, recorded
from torch import Tensor

import foldline as fl

SIZES = ("10-5-1", "30-8-1", "10-5-3", "8-4-4")
KINDS = ("exact", "round-8", "round-6", "round-4", "float32", "exact-box", "round-6-box")


def network(d: int, h: int, k: int, seed: int, box: bool) -> fl.Network:
    rng = torch.Generator().manual_seed(seed)
    W, b, A, q = (torch.randn(*s, generator=rng, dtype=D) for s in ((h, d), (h,), (k, h), (k,)))
    W, b = W / d**0.5, 0.3 * b
    if box:                                                          # the folds around the middle of the box
        W, b = 3 * W, b - 1.5 * W.sum(1)
    return fl.Network(W, b, A / h**0.5, torch.zeros(k, d, dtype=D), 0.3 * q, "sigmoid" if k == 1 else "softmax")


def one(size: str, kind: str, seed: int) -> dict[str, Any]:
    d, h, k = map(int, size.split("-"))
    box = kind.endswith("-box")
    net = network(d, h, k, seed, box)

    def answer(x: Tensor) -> Tensor:
        if kind == "float32":
            return net(x).float()
        if kind.startswith("round"):
            scale = 10.0 ** int(kind.split("-")[1])
            return (net(x) * scale).round() / scale
        return net(x)

    f = fl.value_oracle(answer, budget=200_000, dim=d, box=(0.0, 1.0) if box else None)
    row, found = measured(lambda: fl.extract_from_values(f, rng=fl.generator(seed)), size=size, kind=kind, seed=seed,
                          hidden=h)
    rng = torch.Generator().manual_seed(9)
    x = torch.rand(500, d, generator=rng, dtype=D) if box else torch.randn(500, d, generator=rng, dtype=D)
    row["error"] = float((found.network(x) - net(x)).abs().max()) if found is not None else float("inf")
    # Silently wrong: ok, yet off by more than the certificate allows.
    row["silent"] = found is not None and row["status"] == "ok" and row["error"] > 10 * found.certificate.tolerance
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--report", action="store_true", help="run nothing: the table of all recorded rows")
    args = parser.parse_args()
    past = recorded("extract_links") if args.report else []
    print("| size | answers | status | units right | rows, mean (most) | error, median (worst ok) | ok but off |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for size in args.sizes.split(","):
        for kind in args.kinds.split(","):
            rows = [r for r in past if r["size"] == size and r["kind"] == kind]
            for seed in range(args.first, args.first + (1 if args.quick else args.seeds)) if not args.report else ():
                rows.append(one(size, kind, seed))
                record("extract_links", rows[-1:])
            if not rows:
                continue
            errors = sorted(r["error"] for r in rows)
            worst = max((r["error"] for r in rows if r["status"] == "ok"), default=float("nan"))
            counts = ", ".join(f"{n} {s}" for s, n in Counter(r["status"] for r in rows).items())
            print(f"| {size} | {kind} | {counts} | {sum(r['units'] == r['hidden'] for r in rows)} of {len(rows)} "
                  f"| {sum(r['rows'] for r in rows) / len(rows):,.0f} ({max(r['rows'] for r in rows):,}) "
                  f"| {errors[len(errors) // 2]:.0e} ({worst:.0e}) | {sum(r['silent'] for r in rows)} |", flush=True)


if __name__ == "__main__":
    main()
