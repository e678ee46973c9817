"""Claim: rows grow linearly in h (gradients) and in h d (values), time at most quadratically. Fitted slopes in log-log.

python benchmarks/extract_growth.py --quick --plot benchmarks/results/extract_growth.svg
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from extract_common import measured, network, record, recorded

import foldline as fl

SWEEPS: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {
    "gradients, h": ("h", ((784, 8), (784, 16), (784, 32), (784, 64), (784, 128), (784, 256))),
    "gradients, d": ("d", ((64, 32), (128, 32), (256, 32), (512, 32), (1024, 32))),
    "values, h": ("h", ((128, 4), (128, 8), (128, 16), (128, 32), (128, 64))),
    "values, d": ("d", ((32, 16), (64, 16), (128, 16), (256, 16), (512, 16))),
}


def run(name: str, d: int, h: int, seed: int) -> dict[str, Any]:
    net = network(d, h, 1, seed, bias=True)
    row, _ = measured(lambda: fl.extract_from_gradients(fl.gradient_oracle(net), rng=fl.generator(seed))
                      if name.startswith("grad") else
                      fl.extract_from_values(fl.value_oracle(net), rng=fl.generator(seed)),
                      sweep=name, d=d, h=h, seed=seed)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sweeps", default=";".join(SWEEPS), help="separated by semicolons: " + "; ".join(SWEEPS))
    parser.add_argument("--quick", action="store_true", help="one seed, sizes up to h = 64 and d = 784")
    parser.add_argument("--report", action="store_true", help="run nothing: slopes and plot of all recorded rows")
    parser.add_argument("--plot", default="")
    args = parser.parse_args()
    past = recorded("extract_growth") if args.report else []
    lines: dict[str, tuple[list[int], list[list[float]], list[float]]] = {}
    print("| sweep | seeds | slope of rows | slope of cpu time |\n| --- | --- | --- | --- |")
    for name in args.sweeps.split(";"):
        axis, sizes = SWEEPS[name]
        points: list[dict[str, Any]] = [p for p in past if p["sweep"] == name]
        for d, h in () if args.report else sizes:
            if args.quick and (h > 64 or d > 784):
                continue
            points += [run(name, d, h, seed) for seed in range(1 if args.quick else args.seeds)]
        if not points:
            continue
        if not args.report:
            record("extract_growth", points)
        x = sorted({p[axis] for p in points})
        means = [[float(np.mean([max(p[what], 1e-3) for p in points if p[axis] == v])) for v in x]
                 for what in ("rows", "cpu")]
        fits = [float(np.polyfit(np.log(x), np.log(m), 1)[0]) for m in means]
        lines[name] = (x, means, fits)
        seeds = len({p["seed"] for p in points})
        print(f"| {name} | {seeds} | {fits[0]:.2f} | {fits[1]:.2f} |", flush=True)
    if args.plot:
        import matplotlib
        matplotlib.use("svg")
        from matplotlib.figure import Figure
        figure = Figure(figsize=(9, 4), layout="constrained")
        for axes, i, label in zip(figure.subplots(1, 2), (0, 1), ("rows asked", "cpu seconds"), strict=True):
            for name, (sizes_x, measured_y, slopes) in lines.items():
                axes.loglog(sizes_x, measured_y[i], marker="o", label=f"{name}: slope {slopes[i]:.2f}")
            axes.set_xlabel("h or d")
            axes.set_ylabel(label)
            axes.legend(fontsize=8)
        figure.savefig(args.plot)


if __name__ == "__main__":
    main()
