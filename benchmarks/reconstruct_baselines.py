"""Unmixing against everything else that reads training rows out of weights, on the same victims.

    python benchmarks/reconstruct_baselines.py --case small-start-mnist-n20 --seeds 1 --seconds 120
    python benchmarks/reconstruct_baselines.py --quick                # 10 s a method, one seed
    python benchmarks/reconstruct_baselines.py --method unmix --method atoms

Claim: unmixing recovers more than the published loop at the best of its published settings, in a hundredth of its CPU
time. Methods: unmix; kkt with each published preset and m = 2n candidates; atoms; invert; the rows of the first layer
themselves ("rows"). `--seconds` caps each method by this process's CPU time, which is also the table's. A failure is
a row. The loop's candidates are kept along the way and judged after it has ended: `best` is the highest recovery it
ever had and `cpu_at_best` when it first had it, chosen with the training set, which no attacker can.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from victims_pretrain import CASES as VICTIMS

HERE = Path(__file__).resolve().parent
os.environ.setdefault("FOLDLINE_DATA", str(HERE.parent.parent / "shared" / "data"))
RESULTS = HERE / "results" / "reconstruct_baselines.jsonl"

CASES = ("small-start-mnist-n20", "everyday-mnist-n20", "everyday-cifar10-n50", "small-start-mnist-n100",
         "everyday-mnist-n100", "everyday-cifar10-n100", "small-start-cifar10-n100", "everyday-mnist-n200",
         "everyday-cifar10-n200", "everyday-mnist-n500", "everyday-cifar10-n500")           # of victims_pretrain.py
METHODS = ("unmix", "rows", "atoms", "invert", "kkt mnist-a", "kkt mnist-b", "kkt cifar10-a", "kkt cifar10-b")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seconds", type=float, default=120.0, help="cap for each method")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first, options.first + (1 if options.quick else options.seeds))
    seconds = 10.0 if options.quick else options.seconds
    print(f"{'victim':<26}{'seed':>5}  {'method':<14}{'recovered':>10}{'interval':>14}{'> 0.8':>7}{'> 0.9':>7}"
          f"{'> 0.99':>7}{'unseen > 0.8':>14}{'CPU s':>9}")
    for case in options.case or CASES[:1 if options.quick else None]:
        for seed in seeds:
            for method in options.method or METHODS:
                row = measured(case, seed, method, seconds)
                tell(row)
                RESULTS.parent.mkdir(exist_ok=True)
                with RESULTS.open("a") as out:
                    out.write(json.dumps(row) + "\n")


def measured(case: str, seed: int, method: str, seconds: float) -> dict[str, Any]:
    import foldline as fl
    from foldline.errors import FoldlineError
    from foldline.reconstruction import atoms, kkt
    from foldline.victims.cache import victim
    kkt.deadline = atoms.deadline = cpu_deadline                    # a busy machine does not cut the loop short
    v = victim(*VICTIMS[case], seed=seed)
    row: dict[str, Any] = {"victim": case, "seed": seed, "method": method, "cap": seconds,
                           "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    clock, cpu = time.monotonic(), time.process_time()
    seen: list[tuple[float, int, Any]] = []

    def watch(epoch: int, x: Any) -> None:
        now = time.process_time() - cpu
        if not seen or now > 1.25 * seen[-1][0]:
            seen.append((now, epoch, x.clone()))

    try:
        samples, status = attack(method, v, seed, seconds, watch)
    except FoldlineError as error:
        return {**row, "status": f"{type(error).__name__}: {error}"}
    row |= {"status": status, "seconds": round(time.monotonic() - clock, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2), "candidates": len(samples)}
    if seen:
        row |= along_the_way([*seen, (row["cpu_seconds"], -1, samples)], v)
    # Raw pixels, as a person sees them; a row of weights has no mean to add, so rows are judged centred.
    back = 0 * v.mean if method == "rows" else v.mean
    score = fl.score_reconstruction(samples + back, v.data.x - v.mean + back, v.data.x_unseen - v.mean + back,
                                    image_shape=tuple(v.info["image_shape"]))
    return row | {"recovered": score.recovered, "interval": score.interval, "threshold": score.threshold,
                  "above": score.above, "unseen_above": score.unseen_above,
                  "median_ncc": float(score.ncc.median())}


def cpu_deadline(seconds: float | None) -> Callable[[], bool]:
    end = None if seconds is None else time.process_time() + seconds
    return lambda: end is not None and time.process_time() > end


def along_the_way(seen: list[tuple[float, int, Any]], v: Any) -> dict[str, Any]:
    import torch

    from foldline.judge.reconstruction import FALSE_POSITIVES, matched
    curve = []
    for cpu, epoch, x in seen:
        ncc, _ = matched(x + v.mean, v.data.x.double())
        unseen, _ = matched(x + v.mean, v.data.x_unseen.double())
        share = float((ncc > torch.quantile(unseen, 1 - FALSE_POSITIVES)).double().mean())
        curve.append([round(cpu, 1), epoch, share, int((ncc > 0.8).sum()), int((ncc > 0.9).sum())])
    best = max(c[2] for c in curve)
    return {"curve": curve, "best": best, "cpu_at_best": next(c[0] for c in curve if c[2] == best),
            "best_above_0.9": max(c[4] for c in curve)}


def attack(method: str, v: Any, seed: int, seconds: float, watch: Callable[[int, Any], None]) -> tuple[Any, str]:
    import foldline as fl
    from foldline.reconstruction.weights import first_layer
    shape, rng = tuple(v.info["image_shape"]), fl.generator(seed)
    m = 2 * len(v.data.x)                   # the paper's ratio; it tells the loop more than an attacker knows
    known: dict[str, Any] = {"image_shape": shape, "mean": v.mean, "rng": rng}
    ways: dict[str, Callable[[], Any]] = {
        "unmix": lambda: fl.reconstruct(v.module, **known),
        "atoms": lambda: fl.reconstruct(v.module, method="atoms", seconds=seconds, **known),
        "invert": lambda: fl.invert(v.module, m=m, **known)}
    if method == "rows":
        # The strongest units, as many as the other methods return, both signs: a row has no sign of its own.
        A, _ = first_layer(v.module)
        W = A[A.norm(dim=1).argsort(descending=True)[:m], :-1]
        import torch
        return torch.cat([W, -W]), "ok"
    if method.startswith("kkt "):
        found = fl.reconstruct(v.module, method="kkt", preset=method.removeprefix("kkt "), m=m, seconds=seconds,
                               watch=watch, **known)
    else:
        found = ways[method]()
    return found.samples, found.status.code


def tell(row: dict[str, Any]) -> None:
    head = f"{row['victim']:<26}{row['seed']:>5}  {row['method']:<14}"
    if "recovered" not in row:
        print(head + f"  {row['status']}", flush=True)
        return
    low, high = row["interval"]
    a = row["above"]
    print(head + f"{row['recovered']:>10.0%}{f'{low:.0%} to {high:.0%}':>14}{a['0.8']:>7}{a['0.9']:>7}{a['0.99']:>7}"
          f"{row['unseen_above']['0.8']:>14}{row['cpu_seconds']:>9.1f}"
          + (f"   best {row['best']:.0%} at {row['cpu_at_best']:.0f} s" if "best" in row else ""), flush=True)


if __name__ == "__main__":
    main()
