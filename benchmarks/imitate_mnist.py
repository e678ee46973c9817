"""Claim (paper 000, Figures 2 to 4, on MNIST): a target is imitated from 100x to 1000x fewer queries with gradients
than with values, by the same command for every row; SmoothGrad is as good as raw gradients.

Targets are trained on the first 50,000 images, queries come from the last 10,000, accuracy is on the 10,000 test
images. Rows are appended to results/imitate_mnist.jsonl and not computed twice. --table prints the summary, --figure
draws the curves with the paper's points.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import imitate_common as ic
import torch

FILE = "imitate_mnist.jsonl"
# case -> target, student, queries from, explanation, numbers of queries
Case = tuple[str, str, str, str | None, list[int]]
CASES: dict[str, Case] = {
    "1-layer-gradient": ("1-layer", "1-layer", "data", "gradient", [1]),
    "1-layer-smoothgrad": ("1-layer", "1-layer", "data", "smoothgrad", [1]),
    "1-layer-values": ("1-layer", "1-layer", "data", None, [100, 1000]),
    "2-layer-gradient": ("2-layer", "2-layer-wide", "spread", "gradient", [1, 2, 5, 10, 24, 32, 100]),
    "2-layer-same-gradient": ("2-layer", "2-layer", "spread", "gradient", [10, 32]),
    "2-layer-top-gradient": ("2-layer", "2-layer-wide", "spread", "gradient-top", [10, 100]),
    "2-layer-data-gradient": ("2-layer", "2-layer-wide", "data", "gradient", [10, 24, 40]),
    "2-layer-blended-gradient": ("2-layer", "2-layer-wide", "blended", "gradient", [10, 40]),
    "2-layer-gaussian-unit-gradient": ("2-layer", "2-layer-wide", "gaussian-unit", "gradient", [22, 24]),
    "2-layer-smoothgrad": ("2-layer", "2-layer-wide", "spread", "smoothgrad", [10, 100]),
    "2-layer-values": ("2-layer", "2-layer-wide", "data", None, [100, 1000, 10_000]),
    "2-layer-cross-entropy": ("2-layer", "2-layer", "data", "cross_entropy", [100, 1000, 10_000]),
    "conv-gradient": ("conv", "conv-wide", "blended", "gradient", [1, 2, 5, 10, 100]),
    "conv-same-gradient": ("conv", "conv", "blended", "gradient", [10]),
    "conv-data-gradient": ("conv", "conv-wide", "data", "gradient", [10]),
    "conv-smoothgrad": ("conv", "conv-wide", "blended", "smoothgrad", [10, 100]),
    "conv-values": ("conv", "conv-wide", "data", None, [100, 1000, 10_000]),
    "conv-cross-entropy": ("conv", "conv", "data", "cross_entropy", [100, 1000, 10_000]),
    "conv-gaussian-gradient": ("conv", "conv-wide", "gaussian", "gradient", [10, 100]),
    "conv-gaussian-smoothgrad": ("conv", "conv-wide", "gaussian", "smoothgrad", [10]),
    "conv-gaussian-unit-gradient": ("conv", "conv-wide", "gaussian-unit", "gradient", [10, 100]),
    "conv-smooth-gradient": ("conv", "conv-wide", "smooth", "gradient", [10, 100]),
    "conv-gaussian-values": ("conv", "conv-wide", "gaussian", None, [10_000]),
    "1-by-2-gradient": ("1-layer", "2-layer-wide", "spread", "gradient", [1, 10, 100]),
    "1-by-2-smoothgrad": ("1-layer", "2-layer-wide", "spread", "smoothgrad", [10]),
    "1-by-2-values": ("1-layer", "2-layer-wide", "data", None, [100, 1000]),
    "2-by-1-gradient": ("2-layer", "1-layer", "spread", "gradient", [1, 10, 100]),
    "2-by-1-smoothgrad": ("2-layer", "1-layer", "spread", "smoothgrad", [10]),
    "2-by-1-values": ("2-layer", "1-layer", "data", None, [100, 1000]),
    "2-by-conv-gradient": ("2-layer", "conv-wide", "blended", "gradient", [1, 10, 100]),
    "2-by-conv-smoothgrad": ("2-layer", "conv-wide", "blended", "smoothgrad", [10]),
    "2-by-conv-values": ("2-layer", "conv-wide", "data", None, [100, 1000]),
    "conv-by-2-gradient": ("conv", "2-layer-wide", "blended", "gradient", [1, 10, 100]),
    "conv-by-2-smoothgrad": ("conv", "2-layer-wide", "blended", "smoothgrad", [10]),
    "conv-by-2-values": ("conv", "2-layer-wide", "data", None, [100, 1000]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--n", type=int, nargs="*", help="only these numbers of queries")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--targets", type=int, default=1, help="how many different targets the seeds go round")
    parser.add_argument("--sigma-times", type=float, default=1.0, help="SmoothGrad's sigma over the pixels' deviation")
    parser.add_argument("--steps", type=int, help="shorter training than the default; such rows stand apart")
    parser.add_argument("--committee", type=int, help="another committee than the default; such rows stand apart")
    parser.add_argument("--pile", action="store_true", help="carry any answers to unlabelled pictures, with "
                        "--committee; such rows stand apart")
    parser.add_argument("--quick", action="store_true", help="one seed, at most 10 queries or 100 values")
    parser.add_argument("--table", action="store_true", help="only print what the results file holds")
    parser.add_argument("--figure", metavar="FILE", help="only draw what the results file holds on conv, as SVG")
    parser.add_argument("--classes", metavar="FILE", help="only draw students of another class than the target, as SVG")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time, each on one thread")
    parser.add_argument("--file", default=FILE, help="results file; a new name runs the whole table again")
    given = parser.parse_args()
    if given.figure:
        return figure(given.figure)
    if given.classes:
        return classes(given.classes)
    if given.table:
        return table(given.file)
    wanted = list(rows_wanted(given))
    for model in sorted({row["model"] for row in wanted}):          # trained before rows run side by side
        for seed in range(given.targets):
            ic.target(model, "mnist", seed)
    start = time.perf_counter()
    if given.jobs == 1:
        for row in wanted:
            print(ic.line(ic.one(given.file, **row)), flush=True)
    else:
        # The longest first, so that the last rows do not wait for one of them.
        wanted.sort(key=lambda row: (row["model"] == "conv", row["n"]), reverse=True)
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn"), initializer=torch.set_num_threads,
                                 initargs=(1,)) as pool:
            for done in as_completed([pool.submit(ic.one, given.file, **row) for row in wanted]):
                print(ic.line(done.result()), flush=True)
    print(f"{len(wanted)} rows in {time.perf_counter() - start:.0f} s (rows that were in the file included).")


def rows_wanted(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for case in given.case:
        model, student, kind, explain, counts = CASES[case]
        for n in counts:
            most = 100 if explain in (None, "cross_entropy") else 10
            if (given.n and n not in given.n) or (given.quick and n > most):
                continue
            for seed in range(given.first_seed, given.first_seed + (1 if given.quick else given.seeds)):
                yield {"name": "mnist", "model": model, "student": student, "kind": kind, "explain": explain, "n": n,
                       "seed": seed, "target_seed": seed % given.targets, "sigma_times": given.sigma_times,
                       "steps": given.steps, "committee": given.committee, "pile": given.pile}


def plain_rows(file: str = FILE) -> list[dict[str, Any]]:
    return [row for row in ic.rows_in(file) if not any(k[:6] == "fixed_" for k in row)]


def figure(path: str) -> None:
    """Conv: gradients, values and Gaussian queries, with the points that the paper states."""
    from foldline.reports.figures import draw_alone
    from foldline.reports.figures_imitate import PAPER, imitation_curves
    names = {("blended", "gradient"): "gradient, blends", ("gaussian", "gradient"): "gradient, N(0, I)",
             ("gaussian-unit", "gradient"): "gradient, N(0, I) of raw pixels",
             ("smooth", "gradient"): "gradient, smooth noise", ("data", None): "values, rows",
             ("gaussian", None): "values, N(0, I)"}
    shown = [row | {"explain": names[row["queries_from"], row["explain"]]} for row in plain_rows()
             if row["target"] == "conv" and row["student"] == "conv-wide"
             and (row["queries_from"], row["explain"]) in names]
    curves = imitation_curves(shown, title="Imitating a convolutional network on MNIST",
                              paper=("mnist", "conv", "data"))
    gaussian = imitation_curves([], paper=("mnist", "conv", "gaussian")).series
    assert len(gaussian) == len(PAPER["mnist", "conv", "gaussian"])
    for s in gaussian:
        s.name = f"{s.name}, N(0, I)"
    Path(path).write_text(draw_alone(curves.model_copy(update={"series": [*curves.series, *gaussian]})))


def classes(path: str) -> None:
    """Figure 3 of the paper: students of another class than the target, gradients and values."""
    from foldline.reports.figures import draw_alone
    from foldline.reports.figures_imitate import imitation_curves
    shown = []
    for row in plain_rows():
        student = row["student"].removesuffix("-wide")
        if student != row["target"] and row["explain"] in ("gradient", None):
            name = f"{row['target']} by {student}, {row['explain'] or 'values'}"
            shown.append({k: v for k, v in row.items() if k != "target_accuracy"} | {"explain": name})
    shown.sort(key=lambda row: row["explain"])          # gradients beside values of the same pair
    Path(path).write_text(draw_alone(imitation_curves(shown, title="Students of another class than the target, MNIST")))


def table(file: str) -> None:
    rows = ic.rows_in(file)
    groups = defaultdict(list)
    for row in rows:
        groups[row["target"], row["student"], row["queries_from"], row["explain"] or "values",
               row.get("sigma_times", ""), row["n"], row.get("fixed_steps"), row.get("fixed_committee")].append(row)
    print("| target | student | queries | answers | n | accuracy (lowest to highest) | of the target's | agreement | "
          "seeds | cpu s |")
    print("| --- " * 10 + "|")
    for key, some in sorted(groups.items(), key=str):
        good = [r for r in some if "accuracy" in r]
        if not good:
            print(f"| {' | '.join(map(str, key))} | failed | | | {len(some)} | |")
            continue
        mean = statistics.mean(r["accuracy"] for r in good)
        low, high = (pick(r["accuracy"] for r in good) for pick in (min, max))
        share = statistics.mean(r["accuracy"] / r["target_accuracy"] for r in good)
        agree = statistics.mean(r["agreement"] for r in good)
        cpu = statistics.mean(r["cpu_seconds"] for r in good)
        sigma = f" ({key[4]:g} sigma_D)" if key[4] != "" else ""
        sigma += "".join(f", {k} {v}" for k, v in zip(("steps", "committee"), key[6:], strict=True) if v is not None)
        print(f"| {key[0]} | {key[1]} | {key[2]} | {key[3]}{sigma} | {key[5]} | {mean:.4f} ({low:.4f} to {high:.4f}) | "
              f"{share:.1%} | {agree:.4f} | {len(good)} of {len(some)} | {cpu:.0f} |")
    cpu, wall = (sum(r[k] for r in rows) for k in ("cpu_seconds", "seconds"))
    print(f"\n{len(rows)} rows: {cpu:.0f} s of CPU time, {wall:.0f} s by the clock, row after row.")


if __name__ == "__main__":
    torch.set_num_threads(int(ic.os.environ.get("OMP_NUM_THREADS", "2")))
    main()
