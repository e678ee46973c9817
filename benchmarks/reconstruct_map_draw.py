"""The picture and the summary of reconstruct_map.py, from its rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
LEAKS = 0.5                 # of the training set
LOW, HIGH = 1e-2, 1e5       # what the picture shows of s_n / edge


def height(row: Row) -> float:
    """s_n / edge; a layer with fewer than n values, or with no noise to see, hides some of the n: 0."""
    value = row["height"]
    return float(value) if value is not None else 0.0


def forgotten(row: Row) -> float:
    """How often the start was divided by e: lr decay steps / (1 - momentum)."""
    return 0.05 * row["decay"] * row["steps"] / (1 - 0.9)


def start_std(row: Row) -> float:
    return row["std"] if row["std"] is not None else 1 / math.sqrt(3 * row["d"])


def summary(rows: list[Row]) -> str:
    from scipy.stats import spearmanr
    if len(rows) < 3:
        return f"{len(rows)} victims: too few to say anything."
    seen = [r for r in rows if height(r) > 1]
    hidden = [r for r in rows if height(r) <= 1]
    leaks = sum(r["recovered"] >= LEAKS for r in seen)
    safe = sum(r["recovered"] < LEAKS for r in hidden)
    rank = spearmanr([height(r) for r in rows], [r["recovered"] for r in rows]).statistic
    said = (f"{len(rows)} victims. s_n / edge > 1: {leaks} of {len(seen)} give {LEAKS:.0%} of the training set or "
            f"more; s_n / edge <= 1: {safe} of {len(hidden)} give less. Rank correlation {rank:.2f}.")
    off = [r for r in rows if (height(r) > 1) != (r["recovered"] >= LEAKS)]
    lines = [said, *(f"  off: {r['part']}: {r['data_set']} n {r['n']}, d {r['d']} ({r['live']} live), width "
                     f"{r['width']}, decay {r['decay']}, steps {r['steps']}, std {r['std']}: s_n / edge "
                     f"{height(r):.3g}, rank {r['rank']}, recovered {r['recovered']:.0%}" for r in off)]
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
          lambda r: r["n"] / r["live"], "n / live pixels", log=True)
    curve(axes[1, 1], {"n = 50": [*of("n / width"), *base]}, lambda r: r["n"] / r["width"], "n / width", log=True)
    last = axes[1, 2]
    for part, marker in (("n", "o"), ("n, CIFAR-10", "P"), ("decay", "s"), ("start", "^"), ("n / d", "D"),
                         ("n / width", "v")):
        some = of(part)
        last.scatter([min(max(height(r), LOW), HIGH) for r in some], [100 * r["recovered"] for r in some], s=22,
                     marker=marker, label=part)
    last.axvline(1, color="grey", lw=0.8, ls="--")
    last.set(xscale="log", xlabel="s_n / noise edge", ylim=(-4, 104))
    last.legend(fontsize=7, frameon=False, title="varied", title_fontsize=7)
    figure.suptitle("Lines: recovered at 1 % false positives (%). Dots: s_n / noise edge, right axis; above the dashed "
                    "line all n directions are visible.", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def curve(axes: Any, groups: dict[str, list[Row]], x: Callable[[Row], float], label: str, *, log: bool = False) -> None:
    other = axes.twinx()
    for (name, rows), colour in zip(groups.items(), ("tab:blue", "tab:red", "tab:green"), strict=False):
        rows = sorted(rows, key=x)
        axes.plot([x(r) for r in rows], [100 * r["recovered"] for r in rows], "-o", ms=3, lw=1.3, c=colour, label=name)
        other.plot([x(r) for r in rows], [min(max(height(r), LOW), HIGH) for r in rows], ":", marker=".", ms=4, lw=0.8,
                   c=colour)
    other.axhline(1, color="grey", lw=0.8, ls="--")
    other.set(yscale="log", ylim=(LOW / 2, HIGH * 2))
    other.tick_params(labelsize=7)
    axes.set(xlabel=label, ylim=(-4, 104), **({"xscale": "log"} if log else {}))
    axes.legend(fontsize=7, frameon=False)
