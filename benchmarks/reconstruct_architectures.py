"""The rows of the paper's Tables 1 and 2: unmixing beside a short run of the published loop, on the same victims.

    python benchmarks/reconstruct_architectures.py --list
    python benchmarks/reconstruct_architectures.py --case 100-100 --method unmix
    python benchmarks/reconstruct_architectures.py --table             # Markdown from the rows

Victims are trained in the span's coordinates; rows marked "short" train for fewer epochs or on fewer images than the
paper's. The loop runs with m = 2n candidates and the published CIFAR-10 (MNIST) setting a, `--seconds` at most: at
n = 500 an epoch takes half a second on one core, so this is a small part of its 50,000 epochs, and the table says how
many it had. Its recovery is the best along the way, chosen with the training set. Rows go to
benchmarks/results/reconstruct_architectures.jsonl; a failure is a row.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from reconstruct_baselines import along_the_way

RESULTS = Path(__file__).resolve().parent / "results" / "reconstruct_architectures.jsonl"

# name: (preset, data set, n, epochs or None for the preset's own, what the paper's table calls it)
CASES: dict[str, tuple[str, str, int, int | None, str]] = {
    "1000-1000 n50": ("small-start", "cifar10", 50, None, "Table 1: 1000-1000"),
    "1000-1000 n100": ("small-start", "cifar10", 100, None, "Table 1: 1000-1000"),
    "1000-1000 n500": ("small-start", "cifar10", 500, None, "Table 1: 1000-1000"),
    "1000-1000 n1000": ("small-start", "cifar10", 1000, None, "Table 1: 1000-1000"),
    "100-100": ("small-start-100", "cifar10", 500, None, "Table 1: 100-100"),
    "100-100 n50": ("small-start-100", "cifar10", 50, None, "100-100"),
    "1000-500-100": ("small-start-deep4", "cifar10", 500, None, "Table 1: 1000-500-100"),
    "1000-500-100 n100": ("small-start-deep4", "cifar10", 100, None, "1000-500-100"),
    "1000-500-100-50": ("small-start-deep5", "cifar10", 500, None, "Table 1: 1000-500-100-50"),
    "1000-500-100-50 n100": ("small-start-deep5", "cifar10", 100, None, "1000-500-100-50"),
    "biases": ("small-start-biases", "cifar10", 500, None, "Table 1: 1000-1000 (non-homogeneous)"),
    "biases n100": ("small-start-biases", "cifar10", 100, None, "1000-1000 (non-homogeneous)"),
    "standard n10": ("standard-start", "cifar10", 10, None, "Table 2: standard start"),
    "standard n50": ("standard-start", "cifar10", 50, None, "Table 2: standard start"),
    "sgd": ("mini-batch", "cifar10", 500, None, "Table 2: SGD, 10,000 epochs"),
    "10k": ("epochs-10k", "cifar10", 500, None, "Table 2: 10,000 epochs"),
    "10k mnist": ("epochs-10k", "mnist", 500, None, "Table 2 (MNIST): 10,000 epochs"),
    "sgd n100": ("mini-batch", "cifar10", 100, 2000, "SGD, 2,000 epochs"),
    "10k n100": ("epochs-10k", "cifar10", 100, 3000, "3,000 of 10,000 epochs"),
    "10k mnist n100": ("epochs-10k", "mnist", 100, 3000, "MNIST, 3,000 of 10,000 epochs"),
}
METHODS = ("unmix", "kkt")


def measured(name: str, method: str, seed: int, seconds: float) -> dict[str, Any]:
    import foldline as fl
    from foldline.victims.cache import victim
    from foldline.victims.recipes import preset
    what, data_set, n, epochs, title = CASES[name]
    own = preset(what).recipe
    recipe = own if epochs is None else own.changed(**{"epochs" if own.batch else "steps": epochs})
    v = victim(what, data_set, n, seed=seed, recipe=recipe, in_span=True)
    row: dict[str, Any] = {"case": name, "title": title, "n": n, "data_set": data_set, "seed": seed, "method": method,
                           "loss": v.info["train_loss"], "test_accuracy": v.info["test_accuracy"], "cap": seconds,
                           "epochs": epochs}
    shape = tuple(v.info["image_shape"])
    seen: list[tuple[float, int, Any]] = []
    last, begin = [0], time.process_time()

    def watch(epoch: int, x: Any) -> None:
        last[0] = epoch
        if not seen or time.process_time() - begin > 1.5 * seen[-1][0]:
            seen.append((time.process_time() - begin, epoch, x.clone()))

    known: dict[str, Any] = {"image_shape": shape, "mean": v.mean, "rng": fl.generator(seed)}
    try:
        if method == "unmix":
            found = fl.reconstruct(v.module, **known)
        else:
            found = fl.reconstruct(v.module, method="kkt", preset=f"{'mnist' if shape == (28, 28) else 'cifar10'}-a",
                                   m=2 * n, seconds=seconds, watch=watch, **known)
    except fl.errors.FoldlineError as error:
        return row | {"failed": f"{type(error).__name__}: {error}"}
    row |= {"status": found.status.code, "cpu": round(time.process_time() - begin, 1), "rank": found.certificate.rank,
            "gap": found.certificate.gap}
    if method == "kkt":
        row |= {"loop_epochs": last[0], **along_the_way([*seen, (row["cpu"], last[0], found.samples)], v)}
    score = fl.score_reconstruction(found.samples + v.mean, v.data.x, v.data.x_unseen, image_shape=shape)
    return row | {"recovered": score.recovered, "interval": score.interval, "above": score.above,
                  "unseen_above": score.unseen_above}


def table() -> str:
    last = {(r["case"], r["method"], r["seed"]): r for r in map(json.loads, RESULTS.read_text().splitlines())}
    heads = ("victim", "data, n", "loss", "test accuracy", "directions seen",
             "unmixing: recovered, NCC > 0.8 / 0.9, CPU s",
             "published loop: best along the way, NCC > 0.9, epochs, CPU s")
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name in CASES:
        ours, loop = last.get((name, "unmix", 0)), last.get((name, "kkt", 0))
        if ours is None:
            continue
        cells = [ours["title"], f"{ours['data_set']}, {ours['n']}", f"{ours['loss']:.1e}",
                 f"{ours['test_accuracy']:.0%}"]
        if "failed" in ours:
            cells += ["", ours["failed"]]
        else:
            status = "" if ours["status"] == "ok" else f" ({ours['status']})"
            cells += [str(ours["rank"]), f"{ours['recovered']:.0%}, {ours['above']['0.8']} / {ours['above']['0.9']}, "
                      f"{ours['cpu']:.0f}{status}"]
        cells.append("not run" if loop is None else loop["failed"] if "failed" in loop else
                     f"{loop['best']:.0%}, {loop['best_above_0.9']}, {loop['loop_epochs']:,}, {loop['cpu']:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="cap of the published loop")
    parser.add_argument("--quick", action="store_true", help="the smallest case, 10 s of the loop")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list or options.table:
        print(table() if options.table else "\n".join(CASES))
        return
    RESULTS.parent.mkdir(exist_ok=True)
    for name in options.case or (["100-100 n50"] if options.quick else CASES):
        for method in options.method or METHODS:
            for seed in range(1 if options.quick else options.seeds):
                row = measured(name, method, seed, 10.0 if options.quick else options.seconds)
                with RESULTS.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print({k: v for k, v in row.items() if k != "curve"}, flush=True)


if __name__ == "__main__":
    main()
