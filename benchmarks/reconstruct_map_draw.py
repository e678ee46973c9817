"""The picture and the summary of reconstruct_map.py, from its rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
LEAKS = 0.5                 # of the training set
VISIBLE = 0.7               # share of the n directions above the edge from which on an owner is warned


def visible(row: Row) -> float:
    """The share of the training set's n directions that stand above the noise edge.

    A layer of full rank has no noise to see and none of them can be told apart: 0.
    """
    full = row["rank"] >= min(row["width"], row["live"] + 1)
    return 0.0 if full else min(row["rank"], row["n"]) / row["n"]


def forgotten(row: Row) -> float:
    """How often the start was divided by e: lr decay steps / (1 - momentum)."""
    return 0.05 * row["decay"] * row["steps"] / (1 - 0.9)


def start_std(row: Row) -> float:
    return row["std"] if row["std"] is not None else 1 / math.sqrt(3 * row["d"])


def summary(rows: list[Row]) -> str:
    from scipy.stats import spearmanr
    if len(rows) < 3:
        return f"{len(rows)} victims: too few to say anything."
    seen = [r for r in rows if visible(r) >= VISIBLE]
    hidden = [r for r in rows if visible(r) < VISIBLE]
    leaks = sum(r["recovered"] >= LEAKS for r in seen)
    safe = sum(r["recovered"] < LEAKS for r in hidden)
    rank = spearmanr([visible(r) for r in rows], [r["recovered"] for r in rows]).statistic
    off = [r for r in rows if (visible(r) >= VISIBLE) != (r["recovered"] >= LEAKS)]
    lines = [f"{len(rows)} victims. At least {VISIBLE:.0%} of the n directions visible: {leaks} of {len(seen)} give "
             f"{LEAKS:.0%} of the training set or more; fewer: {safe} of {len(hidden)} give less. Rank correlation of "
             f"visible share and recovery {rank:.2f}.",
             *(f"  off: {r['part']}: {r['data_set']} n {r['n']}, d {r['d']} ({r['live']} live), width {r['width']}, "
               f"decay {r['decay']}, steps {r['steps']}, std {r['std']}: {r['rank']} visible, gap {r['gap']}, "
               f"recovered {r['recovered']:.0%}" for r in off)]
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    mnist = [r for r in rows if r["data_set"] == "mnist"]

    def of(part: str, rows: list[Row] = rows) -> list[Row]:
        return [r for r in rows if r["part"] == part]

    base = [r for r in mnist if r["part"] == "n" and r["n"] == 50]
    curve(axes[0, 0], {"MNIST": of("n"), "CIFAR-10": of("n, CIFAR-10")}, lambda r: r["n"], "n", log=True)
    curve(axes[0, 1], {"decay changed": [r for r in [*of("decay"), *base] if r["steps"] == 6000],
                       "steps changed": [r for r in [*of("decay"), *base] if r["decay"] == 5e-3]},
          forgotten, "learning rate x decay x steps / (1 - momentum)")
    curve(axes[0, 2], {f"n = {n}": [r for r in of("start") if r["n"] == n] for n in (20, 50, 100)}, start_std,
          "standard deviation of the first layer's start", log=True)
    curve(axes[1, 0], {f"{d} pixels": [r for r in [*of("n / d"), *of("n")] if r["d"] == d] for d in (784, 196, 49)},
          lambda r: r["n"] / r["live"], "n / live pixels")
    curve(axes[1, 1], {"n = 50": [*of("n / width"), *base]}, lambda r: r["n"] / r["width"], "n / width")
    last = axes[1, 2]
    for part, marker in (("n", "o"), ("n, CIFAR-10", "P"), ("decay", "s"), ("start", "^"), ("n / d", "D"),
                         ("n / width", "v")):
        some = of(part)
        last.scatter([100 * visible(r) for r in some], [100 * r["recovered"] for r in some], s=22, marker=marker,
                     label=part)
    last.axvline(100 * VISIBLE, color="grey", lw=0.8, ls="--")
    last.set(xlabel="directions above the noise edge, % of n", ylabel="recovered, %", ylim=(-4, 104))
    last.legend(fontsize=7, frameon=False, title="varied", title_fontsize=7)
    figure.suptitle("Solid: recovered at 1 % false positives, % of n. Dotted: directions above the noise edge, % of n "
                    "(0 where the layer has full rank).", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def curve(axes: Any, groups: dict[str, list[Row]], x: Callable[[Row], float], label: str, *, log: bool = False) -> None:
    for (name, rows), colour in zip(groups.items(), ("tab:blue", "tab:red", "tab:green"), strict=False):
        rows = sorted(rows, key=x)
        axes.plot([x(r) for r in rows], [100 * r["recovered"] for r in rows], "-o", ms=3, lw=1.3, c=colour, label=name)
        axes.plot([x(r) for r in rows], [100 * visible(r) for r in rows], ":", marker="s", mfc="none", ms=4, lw=0.9,
                  c=colour)
    axes.set(xlabel=label, ylim=(-4, 104), **({"xscale": "log"} if log else {}))
    axes.legend(fontsize=7, frameon=False)
