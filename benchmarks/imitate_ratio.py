"""Claim (paper 000, Section 5.1): on MNIST, values need 100x the queries of gradients for the same accuracy.

A query is one input asked: a gradient query answers the values and the gradients of all ten outputs at it, a value
query the values. For the accuracy that 10 gradient queries reach (the mean of the rows of imitate_mnist.py), values are
asked at more and more points of the same kind until they reach it too, and learned in two ways:

    paper   cross-entropy to the target's probabilities, a student of the target's own size
    ours    what fl.imitate does with values: full logits, a wide student

Points: random rows, or those that fl.imitate's table uses for gradients (unlike rows for 2-layer, blends for conv).
Rows go to results/imitate_mnist.jsonl and are not computed twice.
"""

from __future__ import annotations

import argparse
import statistics

import imitate_common as ic
import torch
from imitate_mnist import FILE, plain_rows

CHOSEN = {"2-layer": "spread", "conv": "blended"}
WAYS = {"paper": ("{}", "cross_entropy"), "ours": ("{}-wide", None)}


def accuracy(model: str, way: str, kind: str, n: int, seeds: int) -> float:
    student, explain = WAYS[way]
    rows = [ic.one(FILE, name="mnist", model=model, student=student.format(model), kind=kind, explain=explain, n=n,
                   seed=seed, target_seed=0) for seed in range(seeds)]
    for row in rows:
        print("  ", ic.line(row), flush=True)
    return statistics.mean(row["accuracy"] for row in rows)


def searched(model: str, way: str, kind: str, goal: float, seeds: int, sizes: list[int]) -> str:
    """How many values were tried, smallest first, and which of them reached the goal"""
    tried = []
    for n in sizes:
        found = accuracy(model, way, kind, n, seeds)
        tried.append(f"{n:,}: {found:.4f}")
        if found >= goal:
            return f"{', '.join(tried)} | at most {n:,}"
    return f"{', '.join(tried)} | more than {sizes[-1]:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="*", default=list(CHOSEN), choices=list(CHOSEN))
    parser.add_argument("--way", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--points", nargs="*", default=["random", "chosen"], choices=["random", "chosen"])
    parser.add_argument("--gradients", type=int, nargs="*", default=[10])
    parser.add_argument("--sizes", type=int, nargs="*", default=[100, 300, 1000, 3000])
    parser.add_argument("--seeds", type=int, default=1, help="draws of the values; the mean has to reach the goal")
    parser.add_argument("--quick", action="store_true", help="2-layer, at most 1,000 values")
    given = parser.parse_args()
    if given.quick:
        given.target, given.sizes = ["2-layer"], [n for n in given.sizes if n <= 1000]
    lines = []
    for model in given.target:
        for points in given.points:
            kind = CHOSEN[model] if points == "chosen" else "data"
            for n in given.gradients:
                goals = [row["accuracy"] for row in plain_rows() if row["target"] == model and row["n"] == n
                         and row["student"] == f"{model}-wide" and row["queries_from"] == kind
                         and row["explain"] == "gradient"]
                if not goals:
                    print(f"no row of {n} gradients at {kind} points for {model} yet: run imitate_mnist.py first")
                    continue
                goal = statistics.mean(goals)
                for way in given.way:
                    found = searched(model, way, kind, goal, given.seeds, sorted(given.sizes))
                    lines.append(f"| {model} | {kind} | {n} | {goal:.4f} ({len(goals)} seeds) | {way} | {found} |")
    print("\n| target | points | gradients | their accuracy | values learned | values | enough |\n"
          + "| --- " * 7 + "|")
    print("\n".join(lines))


if __name__ == "__main__":
    torch.set_num_threads(int(ic.os.environ.get("OMP_NUM_THREADS", "2")))
    main()
