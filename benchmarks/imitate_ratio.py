"""Claim (paper 000, Section 5.1): on MNIST, values need 100x the queries of gradients for the same accuracy.

A query is one input asked: a gradient query answers the values and the gradients of all ten outputs at it, a value
query the values. For the accuracy that 1, 2, 5 and 10 gradient queries reach (the mean of the rows of
imitate_mnist.py), the smallest number of value queries that reaches it too is searched by bisection on a grid (1, 1.5,
2, 3, 5, 7 per decade), with the values learned in two ways:

    paper   cross-entropy to the target's probabilities, a student of the target's own size
    ours    what fl.imitate does with values: full logits, a wide student

both at random rows. Rows go to results/imitate_mnist.jsonl and are not computed twice.
"""

from __future__ import annotations

import argparse
import statistics

import imitate_common as ic
import torch
from imitate_mnist import FILE, plain_rows

GRID = [round(m * 10**k) for k in range(1, 4) for m in (1, 1.5, 2, 3, 5, 7)] + [10_000]
POINTS = {"2-layer": "spread", "conv": "blended"}
WAYS = {"paper": ("{}", "cross_entropy"), "ours": ("{}-wide", None)}


def accuracy(model: str, way: str, n: int, seeds: int) -> float:
    student, explain = WAYS[way]
    rows = [ic.one(FILE, name="mnist", model=model, student=student.format(model), kind="data", explain=explain, n=n,
                   seed=seed, target_seed=0) for seed in range(seeds)]
    print("  ", ic.line(rows[-1]), flush=True)
    return statistics.mean(row["accuracy"] for row in rows)


def enough(model: str, way: str, goal: float, seeds: int, most: int) -> int | None:
    """The smallest n of the grid whose accuracy reaches the goal, taking accuracy to grow with n."""
    grid = [n for n in GRID if n <= most]
    low, high = -1, len(grid)                               # grid[low] does not reach it, grid[high] does
    while high - low > 1:
        middle = (low + high) // 2
        if accuracy(model, way, grid[middle], seeds) >= goal:
            high = middle
        else:
            low = middle
    return grid[high] if high < len(grid) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="*", default=list(POINTS), choices=list(POINTS))
    parser.add_argument("--way", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--gradients", type=int, nargs="*", default=[1, 2, 5, 10])
    parser.add_argument("--seeds", type=int, default=1, help="draws of the values; the mean has to reach the goal")
    parser.add_argument("--most", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="2-layer from 10 gradients, at most 1,000 values")
    given = parser.parse_args()
    if given.quick:
        given.target, given.gradients, given.most = ["2-layer"], [10], 1000
    lines = []
    for model in given.target:
        for n in given.gradients:
            goals = [row["accuracy"] for row in plain_rows() if row["target"] == model and row["n"] == n
                     and row["student"] == f"{model}-wide" and row["queries_from"] == POINTS[model]
                     and row["explain"] == "gradient"]
            if not goals:
                print(f"no row of {n} gradients for {model} yet: run imitate_mnist.py first")
                continue
            goal = statistics.mean(goals)
            for way in given.way:
                found = enough(model, way, goal, given.seeds, given.most)
                said = f"{found:,} ({found / n:.0f}x)" if found else \
                    f"more than {given.most:,} (> {given.most / n:.0f}x)"
                lines.append(f"| {model} | {n} | {goal:.4f} | {way} | {said} |")
    print("\n| target | gradients | accuracy | values learned | values for the same |\n" + "| --- " * 5 + "|")
    print("\n".join(lines))


if __name__ == "__main__":
    torch.set_num_threads(int(ic.os.environ.get("OMP_NUM_THREADS", "2")))
    main()
