"""Claim: the span gives the training images back, from weights and from a black box, in seconds.

One row per victim, access and seed: recovered at 1 % false positives with its interval, NCC counts beside the unseen
null, exact images claimed and how many of those are right, queries, seconds. Failures are rows.

    python benchmarks/reconstruct_table.py --case mnist-20-small --seeds 3
    python benchmarks/reconstruct_table.py --case mnist-100-small --seeds 3 --public     # and the test images, public
    python benchmarks/reconstruct_table.py --list
    python benchmarks/reconstruct_table.py --table                  # Markdown of the last run of each row
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("FOLDLINE_DATA", str(Path(__file__).resolve().parents[2] / "shared" / "data"))

import torch

import foldline as fl
from foldline.oracles.explain import smoothgrad_oracle
from foldline.reconstruction.black_box import where_to_look
from foldline.reconstruction.separator import Separator, load_separator, save_separator, train_separator
from foldline.victims.cache import cache_folder, victim
from foldline.victims.datasets import load_dataset

RESULTS = Path(__file__).parent / "results" / "reconstruct_table.jsonl"

# name: (victim preset, data set, n, what the issue asks for)
CASES: dict[str, tuple[str, str, int, str]] = {
    "mnist-20-small": ("small-start", "mnist", 20, "100 %, all NCC > 0.9, 2 s"),
    "mnist-100-small": ("small-start", "mnist", 100, "70 %, 60 s"),
    "mnist-20": ("everyday", "mnist", 20, ""),
    "mnist-50": ("everyday", "mnist", 50, ""),
    "mnist-100": ("everyday", "mnist", 100, "100 %, 80 % NCC > 0.99, 120 s"),
    "mnist-200": ("everyday", "mnist", 200, "60 %, 10 min"),
    "mnist-500": ("everyday-wide-batches", "mnist", 500, "aim 20 %, 30 min"),
    "cifar10-50": ("everyday", "cifar10", 50, "100 %, 90 % NCC > 0.9, 10 s"),
    "cifar10-100": ("everyday", "cifar10", 100, "100 %, 90 % NCC > 0.9, 10 s"),
    "cifar10-100-small": ("small-start", "cifar10", 100, "75 %, 60 s"),
    "cifar10-200": ("everyday", "cifar10", 200, "95 %, 60 % NCC > 0.9, 60 s"),
    "cifar10-500": ("everyday-wide-batches", "cifar10", 500, "aim 20 %, 30 min"),
}
ACCESS = ("weights", "gradients", "smoothgrad", "values", "labels")
PUBLIC = " and public images"


def separator(data_set: str) -> Separator:
    """What the 10,000 test images teach, which are in no victim's training set and in no unseen one."""
    path = cache_folder() / "separators" / f"{data_set}.safetensors"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        start, source = time.perf_counter(), load_dataset(data_set)
        taught = train_separator(source.x_test, source.image_shape, rng=fl.generator(0))
        save_separator(taught, path)
        print(f"separator of {data_set}: worth {taught.worth:.0%}, {time.perf_counter() - start:.0f} s", flush=True)
    return load_separator(path)


def attack(module: torch.nn.Module, access: str, n: int, seed: int, public: Separator | None, **known: Any) -> Any:
    d = known["mean"].numel()
    rng = fl.generator(seed)
    if access == "weights":
        return fl.reconstruct(module, rng=rng, public=public, **known)
    if access == "gradients":
        span = fl.recover_span(fl.gradient_oracle(module, budget=n + 20), rng=rng)
    elif access == "smoothgrad":
        span = fl.recover_span(smoothgrad_oracle(module, samples=10, sigma=0.1, rng=fl.generator(seed + 1),
                                                 budget=n + 20), rng=rng)
    elif access == "values":
        span = fl.recover_span(fl.value_oracle(module, budget=int(1.1 * (n + 20) * (d + 1))), rng=rng,
                               within=where_to_look(known["image_shape"]))
    else:
        span = fl.recover_span_from_labels(fl.label_oracle(module), rng=rng)
    return fl.reconstruct_from_span(span, rng=rng, public=public, **known)


def row_of(name: str, access: str, seed: int, public: bool) -> dict[str, Any]:
    preset, data_set, n, asked = CASES[name]
    taught = separator(data_set) if public else None
    v = victim(preset, data_set, n, seed=seed)
    known = {"image_shape": v.data.image_shape, "mean": v.mean}
    row: dict[str, Any] = {"case": name, "access": access + PUBLIC * public, "seed": seed, "n": n, "asked": asked,
                           "threads": torch.get_num_threads(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                           "load": round(os.getloadavg()[0], 1)}
    start = time.perf_counter()
    try:
        found = attack(v.module, access, n, seed, taught, **known)
    except fl.errors.FoldlineError as error:
        return {**row, "failed": f"{type(error).__name__}: {error}", "seconds": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    score = fl.score_reconstruction(found.samples + v.mean, v.data.x, v.data.x_unseen, image_shape=v.data.image_shape)
    exact = found.evidence.get("exact", torch.zeros(len(found.samples))) > 0
    right = {int(m) for m, c in zip(score.match.tolist(), score.ncc.tolist(), strict=True) if c > 0.99}
    wrong = [i for i in torch.nonzero(exact).flatten().tolist() if i not in right]
    return {**row, "status": found.status.code, "seconds": round(seconds, 1), "queries": found.queries,
            "estimated_n": found.estimated_n, "gap": found.certificate.gap, "recovered": score.recovered,
            "interval": score.interval, "threshold": score.threshold, "above": score.above,
            "unseen_above": score.unseen_above, "exact": int(exact.sum()), "exact_wrong": len(wrong),
            "ssim_median": float(score.ssim.nanmedian()), "ssim_unseen": float(score.unseen_ssim.nanmedian())}


def table() -> str:
    last = {(r["case"], r["access"], r["seed"]): r for r in map(json.loads, RESULTS.read_text().splitlines())}
    heads = ("victim", "access", "recovered at 1 % false positives: median (by seed)", "NCC > 0.8 / 0.9 / 0.99",
             "unseen > 0.8 / 0.9", "confirmed (wrong)", "queries", "s", "asked for")
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for case in CASES:
        for access in [way + end for way in ACCESS for end in ("", PUBLIC)]:
            rows = [last[k] for k in sorted(last) if k[:2] == (case, access) and "failed" not in last[k]]
            if not rows:
                continue
            shares = [r["recovered"] for r in rows]
            by_seed = ", ".join(f"{v:.3g}" for v in (100 * s for s in shares))
            above = " / ".join(str(round(median(r["above"][t] for r in rows))) for t in ("0.8", "0.9", "0.99"))
            unseen = " / ".join(str(round(median(r["unseen_above"][t] for r in rows))) for t in ("0.8", "0.9"))
            lines.append(f"| {case} | {access} | {median(shares):.1%} ({by_seed}) | {above} of {rows[0]['n']} | "
                         f"{unseen} | {round(median(r['exact'] for r in rows))} "
                         f"({sum(r['exact_wrong'] for r in rows)}) | "
                         f"{round(median(r['queries'] for r in rows)):,} | {median(r['seconds'] for r in rows):.3g} | "
                         f"{rows[0]['asked'] if access.startswith('weights') else ''} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", help="one of the cases; default all")
    parser.add_argument("--access", action="append", choices=ACCESS, help="default weights")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--public", action="store_true", help="give the attack the data set's test images")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.list or arguments.table:
        print(table() if arguments.table else "\n".join(CASES))
        return
    RESULTS.parent.mkdir(exist_ok=True)
    print(f"{'case':18} {'access':10} seed  recovered [interval]     >.8 >.9 >.99 of n  exact(wrong)  queries  seconds")
    for name in arguments.case or CASES:
        for access in arguments.access or ["weights"]:
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                row = row_of(name, access, seed, arguments.public)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                if "failed" in row:
                    print(f"{name:18} {access:10} {seed:4}  {row['failed']}", flush=True)
                    continue
                low, high = row["interval"]
                print(f"{name:18} {row['access']:10} {seed:4}  {row['recovered']:8.1%} [{low:.0%}, {high:.0%}] "
                      f"{row['above']['0.8']:8} {row['above']['0.9']:3} {row['above']['0.99']:4} {row['n']:4} "
                      f"{row['exact']:6} ({row['exact_wrong']}) {row['queries']:9} {row['seconds']:8.1f}", flush=True)


if __name__ == "__main__":
    main()
