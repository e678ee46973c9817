"""Accuracy against queries, one curve per kind of explanation, with the points paper 000 states drawn in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from foldline.reports.document import Curves, Series

# Stated in the paper's text: (data, target, queries from) -> answers -> (queries, accuracy).
PAPER: dict[tuple[str, str, str], dict[str, list[tuple[int, float]]]] = {
    ("mnist", "conv", "data"): {"gradient": [(10, 0.95)], "values": [(1000, 0.95)]},
    ("mnist", "conv", "gaussian"): {"gradient": [(10, 0.84)], "values": [(10_000, 0.71)]},
    ("cifar10", "conv", "gaussian"): {"gradient": [(10, 0.50)], "values": [(10_000, 0.11)]},
}


def imitation_curves(rows: Sequence[Mapping[str, Any]], *, title: str = "Accuracy against queries",
                     paper: tuple[str, str, str] | None = None) -> Curves:
    """rows: {"explain": name or None, "n": queries, "accuracy" or "agreement": fraction}; failures are left out."""
    measure = "accuracy" if any(r.get("accuracy") is not None for r in rows) else "agreement"
    groups: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.get(measure) is not None:
            groups[row.get("explain") or "values"][int(row["n"])].append(float(row[measure]))
    series = [Series(name=name, x=[float(n) for n in sorted(points)], y=[mean(points[n]) for n in sorted(points)])
              for name, points in groups.items()]
    goal = next((float(r["target_accuracy"]) for r in rows if r.get("target_accuracy")), None)
    counts = [n for points in groups.values() for n in points]
    if measure == "accuracy" and goal is not None and counts:
        series.append(Series(name="target", x=[float(min(counts)), float(max(counts))], y=[goal, goal],
                             style="dashed"))
    for name, points in (PAPER.get(paper, {}) if paper else {}).items():
        series.append(Series(name=f"paper, {name}", x=[float(n) for n, _ in points], y=[a for _, a in points],
                             style="points"))
    said = "; ".join(f"{s.name}: " + ", ".join(f"{y:.3f} at {x:g}" for x, y in zip(s.x, s.y, strict=True)
                                               if y is not None) for s in series)
    return Curves(id="imitation", title=title, caption=f"{measure.capitalize()} on test rows; each curve is one kind "
                  f"of answer.", alt=f"{measure} against queries. {said}", x_label="queries", y_label=measure,
                  log_x=True, series=series)
