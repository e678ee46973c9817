"""Claim: rows and time grow polynomially in k, d and 1/epsilon (paper 001's Theorem 1.1 says: some polynomial).

Generic networks in k and d (rows before the certificate: what finding costs), as learnt by default and by lines alone;
for 1/epsilon the same with smaller errors asked for, and the paper's own lower bound: a bump of width e alone, which
takes about 1/e probes to see (Remark 1.3), with tails of kurtosis 5/e covered.
Prints fitted slopes of log rows and log seconds; --plot writes the figure.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from learn_instances import bump, generic, parameters, relative_error

import foldline as fl
from foldline.networks.one_hidden import Network

RESULTS = Path(__file__).parent / "results" / "learn_growth.jsonl"
K, DIMS, WIDTHS = (8, 16, 32, 64, 128, 256), (5, 10, 20, 40, 80, 160), (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
EPSILONS = (1e-1, 1e-3, 1e-5, 1e-7, 1e-9, 1e-11)
AXES = ("k", "d", "k, lines only", "d, lines only", "1/epsilon", "1/width")


def measured(axis: str, value: float, net: Network, seed: int, **options: float) -> dict[str, float | str | bool]:
    start = time.process_time()                                     # of this process: others share the machine
    found = fl.learn_from_queries(fl.value_oracle(net), rng=fl.generator(seed), **options)
    seconds = time.process_time() - start
    rows = found.queries if axis.startswith("1") else found.queries - found.certificate.probes
    return {"axis": axis, "value": value, "seed": seed, "rows": rows, "all_rows": found.queries, "seconds": seconds,
            "ok": found.status.ok, "relative_error": relative_error(net, found.network, 100_000),
            "parameters": parameters(net)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--axes", default="; ".join(AXES))
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    seeds = range(1 if options.quick else options.seeds)
    rows = []
    for axis in options.axes.split("; "):
        for seed in seeds:
            by_extraction = "lines" not in axis
            if axis[0] == "k":
                rows += [measured(axis, k, generic(k, 20, seed), seed, hand_over=by_extraction) for k in K]
            elif axis[0] == "d":
                rows += [measured(axis, d, generic(32, d, seed), seed, hand_over=by_extraction) for d in DIMS]
            elif axis == "1/epsilon":
                rows += [measured(axis, 1 / e, generic(20, 10, seed), seed, epsilon=e) for e in EPSILONS]
            else:
                rows += [measured(axis, 1 / e, bump(seed, 4, e, k=0), seed, kurtosis=5 / e, epsilon=1e-2)
                         for e in WIDTHS]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        for row in rows:
            file.write(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%S"), **row}) + "\n")
    rows = newest(seeds)                                            # an axis may have been run in another part
    print(f"{'axis':16}{'rows ~':>10}{'seconds ~':>11}{'certified':>11}{'worst error':>13}   median rows")
    slopes = {}
    for axis in [axis for axis in AXES if any(r["axis"] == axis for r in rows)]:
        some = [r for r in rows if r["axis"] == axis]
        x = np.log([float(r["value"]) for r in some])
        # Time is fitted on its upper half: below, it is the start of Python functions.
        late = x >= np.median(x)
        slopes[axis] = (np.polyfit(x, np.log([float(r["rows"]) for r in some]), 1)[0],
                        np.polyfit(x[late], np.log([float(r["seconds"]) for r in some])[late], 1)[0])
        medians = {v: int(np.median([float(r["rows"]) for r in some if r["value"] == v]))
                   for v in sorted({float(r["value"]) for r in some})}
        print(f"{axis:16}{slopes[axis][0]:>10.2f}{slopes[axis][1]:>11.2f}"
              f"{sum(bool(r['ok']) for r in some):>6}/{len(some):<4}"
              f"{max(float(r['relative_error']) for r in some):>13.1e}   {medians}")
    if options.plot:
        draw(rows, slopes, options.plot)


def newest(seeds: range) -> list[dict[str, float | str | bool]]:
    """The last stored row of every axis, value and seed; axes of other names are of older forms of this file."""
    stored = (json.loads(line) for line in RESULTS.read_text().splitlines())
    return list({(r["axis"], r["value"], r["seed"]): r for r in stored
                 if r["axis"] in AXES and r["seed"] in seeds}.values())


def draw(rows: list[dict[str, float | str | bool]], slopes: dict[str, tuple[float, float]], path: Path) -> None:
    from matplotlib.figure import Figure
    across = min(3, len(slopes))
    figure = Figure(figsize=(4 * across, 3.2 * -(-len(slopes) // across)), layout="constrained")
    panels = figure.subplots(-(-len(slopes) // across), across, squeeze=False).reshape(-1)
    for axes, (axis, (of_rows, of_time)) in zip(panels, slopes.items(), strict=False):
        some = [r for r in rows if r["axis"] == axis]
        axes.loglog([r["value"] for r in some], [r["rows"] for r in some], "o", markersize=3,
                    label=f"rows, slope {of_rows:.2f}")
        axes.loglog([r["value"] for r in some], [1e4 * float(r["seconds"]) for r in some], "x", markersize=4,
                    label=f"seconds x 10,000, slope {of_time:.2f}")
        axes.set_xlabel(axis)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main()
