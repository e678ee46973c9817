"""Victims that never forgot their start: what is found under it, beside what unmixing finds above it.

    python benchmarks/reconstruct_faint.py --seeds 2
    python benchmarks/reconstruct_faint.py --quick                    # the smallest victim, one seed
    python benchmarks/reconstruct_faint.py --table                    # Markdown from the rows

Claim: default initialisation without weight decay, SGD or AdamW, does not protect a training set of 10 to 20 images.
"faint" is fl.reconstruct as it is; "span" the same victim by unmixing alone. Rows go to
benchmarks/results/reconstruct_faint.jsonl; a failure is a row. Constants were chosen on seed 0 of the standard start
(n = 10, 20 and 50), of AdamW (n = 20 and 50) and no-decay (n = 20), and on one ten-class victim; rows of the span were
kept beside for a victim of the map. Other seeds of this table were run and looked at, but nothing was chosen by them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
os.environ.setdefault("FOLDLINE_DATA", str(HERE.parent.parent / "shared" / "data"))
RESULTS = HERE / "results" / "reconstruct_faint.jsonl"
VICTIMS = ("standard-start", "no-decay", "adamw")
METHODS = ("faint", "span")


def measured(victim_name: str, data_set: str, n: int, seed: int, method: str) -> dict[str, Any]:
    import foldline as fl
    from foldline.reconstruction.features import features_for
    from foldline.victims.cache import victim
    v = victim(victim_name, data_set, n, seed=seed, in_span=victim_name == "standard-start")
    shape = v.data.image_shape
    row: dict[str, Any] = {"victim": victim_name, "data_set": data_set, "n": n, "seed": seed, "method": method,
                           "test_accuracy": v.info["test_accuracy"],
                           "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    # Features that are given are all that is looked at.
    known: dict[str, Any] = {"features": features_for(shape)} if method == "span" else {}
    begin = time.process_time()
    try:
        found = fl.reconstruct(v.module, rng=fl.generator(seed), image_shape=shape, mean=v.mean, **known)
    except fl.errors.FoldlineError as error:
        return row | {"failed": f"{type(error).__name__}: {error}"}
    row |= {"status": found.status.code, "cpu": round(time.process_time() - begin, 1), "rank": found.certificate.rank,
            "candidates": len(found.samples)}
    if not len(found.samples):
        return row | {"recovered": 0.0, "above": {"0.8": 0, "0.9": 0, "0.99": 0}}
    score = fl.score_reconstruction(found.samples + v.mean, v.data.x, v.data.x_unseen, image_shape=shape)
    first = fl.score_reconstruction(found.samples[:n] + v.mean, v.data.x, v.data.x_unseen, image_shape=shape)
    return row | {"recovered": score.recovered, "interval": score.interval, "threshold": score.threshold,
                  "above": score.above, "unseen_above": score.unseen_above, "median_ncc": float(score.ncc.median()),
                  "by_rank": first.above, "nulls": score.nulls}


def table() -> str:
    last = {(r["victim"], r["data_set"], r["n"], r["method"], r["seed"]): r
            for r in map(json.loads, RESULTS.read_text().splitlines())}
    heads = ("victim", "data, n", "directions above the edge", "under the start: recovered (by seed)",
             "NCC > 0.8 / 0.9 (unseen > 0.8)", "unmixing alone", "NCC > 0.8", "CPU s")
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, data_set, n in sorted({k[:3] for k in last}, key=lambda k: (VICTIMS.index(k[0]), k[1], k[2])):
        ours, plain = ([last[k] for k in sorted(last) if k[:4] == (name, data_set, n, m)] for m in METHODS)
        if not ours:
            continue

        def shares(rows: list[dict[str, Any]]) -> str:
            return ", ".join(r.get("failed") or f"{r['recovered']:.0%}" for r in rows)

        def above(rows: list[dict[str, Any]], level: str, kind: str = "above") -> str:
            return f"{median(r.get(kind, {}).get(level, 0) for r in rows):g}"

        lines.append(f"| {name} | {data_set}, {n} | {median(r['rank'] for r in ours):g} | {shares(ours)} | "
                     f"{above(ours, '0.8')} / {above(ours, '0.9')} ({above(ours, '0.8', 'unseen_above')}) of {n} | "
                     f"{shares(plain)} | {above(plain, '0.8')} | {median(r['cpu'] for r in ours):.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victim", action="append", choices=VICTIMS)
    parser.add_argument("--data", action="append", choices=("cifar10", "mnist"))
    parser.add_argument("--n", action="append", type=int)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table())
        return
    RESULTS.parent.mkdir(exist_ok=True)
    for name in options.victim or VICTIMS[:1 if options.quick else None]:
        for data_set in options.data or (("mnist",) if options.quick else ("cifar10", "mnist")):
            for n in options.n or ((10,) if options.quick else (10, 20, 50)):
                for seed in range(1 if options.quick else options.seeds):
                    for method in METHODS:
                        row = measured(name, data_set, n, seed, method)
                        with RESULTS.open("a") as out:
                            out.write(json.dumps(row) + "\n")
                        print({k: w for k, w in row.items() if k not in ("nulls", "interval", "at")}, flush=True)


if __name__ == "__main__":
    main()
