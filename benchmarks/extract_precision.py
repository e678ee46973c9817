"""Claim: rounded, noisy and float32 answers give as much as their precision supports, and the status says how much.

"best possible" is least squares over the very same answers, started at the truth (which only this file knows).
python benchmarks/extract_precision.py --seeds 20 --sizes 64-16-1,10-10-1 --kinds round-8,float32
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch
from extract_common import D, function_error, measured, network, record, recorded
from torch import Tensor, nn

import foldline as fl
from foldline.extract.least_squares import solve_least_squares
from foldline.extract.result import parameters
from foldline.extract.units import Units
from foldline.oracles.protocols import Source
from foldline.oracles.wrappers import Relay

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


class Recorded(Relay):
    """Keeps what was asked and answered, for the least squares that starts at the truth."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.x: list[Tensor] = []
        self.y: list[Tensor] = []

    def answer(self, x: Tensor) -> Tensor:
        y = self.source.answer(x)
        self.x.append(x.to(self.source.dtype).double())
        self.y.append(y.double())
        return y


def best_possible(net: fl.Network, kept: Recorded, kind: str) -> fl.Network:
    x, y = torch.cat(kept.x), torch.cat(kept.y)
    size = (x.norm(dim=1) / x.shape[1]**0.5).clamp_min(1.0)          # float32 rounds more where the sums are larger
    sigma = size if kind in ("float32", "exact") else torch.ones_like(size)
    sigma = sigma * {"float32": 1e-7, "exact": 1e-15, "noise-1e-8": 1e-8}.get(kind, 0.29 * 10.0 ** -int(
        kind.split("-")[1] if kind.startswith("round") else 0))
    truth = Units(net.W, net.b, net.A, net.P, net.q)
    return solve_least_squares(truth, x, y, sigma, rounds=20, start=1e-11, tight=True).units.network()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="64-16-1,10-10-1")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--quick", action="store_true", help="three seeds of 10-10-1")
    parser.add_argument("--report", action="store_true", help="run nothing: the table of all recorded rows")
    args = parser.parse_args()
    past = recorded("extract_precision") if args.report else []
    print("| size | answers | status | units, mean | rows per parameter, mean (most) | error, median (worst) "
          "| best possible, median (worst) | ok but off |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in ("10-10-1",) if args.quick else args.sizes.split(","):
        for kind in args.kinds.split(","):
            rows = [r for r in past if r["size"] == size and r["kind"] == kind]
            for seed in range(args.first, args.first + (3 if args.quick else args.seeds)) if not args.report else ():
                rows.append(one(size, kind, seed))
                record("extract_precision", rows[-1:])
            if not rows:
                continue
            errors, best = (sorted(float(r[name]) for r in rows) for name in ("error", "best"))
            per = [r["rows"] / r["parameters"] for r in rows]
            counts = ", ".join(f"{n} {s}" for s, n in Counter(str(r["status"]) for r in rows).items())
            print(f"| {size} | {kind} | {counts} | {sum(r['units'] for r in rows) / len(rows):.1f} "
                  f"| {sum(per) / len(per):.2f} ({max(per):.2f}) | {errors[len(errors) // 2]:.1e} ({errors[-1]:.1e}) "
                  f"| {best[len(best) // 2]:.1e} ({best[-1]:.1e}) | {sum(r['silent'] for r in rows)} |", flush=True)


def one(size: str, kind: str, seed: int) -> dict[str, Any]:
    d, h, k = map(int, size.split("-"))
    net = network(d, h, k, seed, bias=True)
    f = fl.value_oracle(target(net, kind, seed), budget=200_000, dim=d)
    kept: list[Recorded] = []

    def recording(source: Source) -> Recorded:
        kept.append(Recorded(source))
        return kept[-1]

    f = f.wrap(recording)
    row, found = measured(lambda: fl.extract_from_values(f, rng=fl.generator(seed)), size=size, kind=kind, seed=seed,
                          parameters=parameters(h, d, k) / k)
    x = torch.randn(500, d, generator=torch.Generator().manual_seed(1), dtype=D)
    if kind == "float32":                                            # the target's own weights are rounded
        net = fl.Network(*(t.float().double() for t in (net.W, net.b, net.A, net.P, net.q)))
    row["error"] = function_error(net, found.network, x) if found is not None else float("inf")
    row["best"] = function_error(net, best_possible(net, kept[0], kind), x)
    # Silently wrong: ok, yet the function is off by more than the certificate allows.
    allowed = float("inf") if found is None else found.certificate.tolerance / float(net(x).abs().max())
    row["silent"] = row["status"] == "ok" and row["error"] > 10 * allowed
    return row


if __name__ == "__main__":
    main()
