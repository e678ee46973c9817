"""Train the victims of the reconstruction benchmarks into the cache, smallest first, and check how their spectra fall.

    python benchmarks/victims_pretrain.py --list
    python benchmarks/victims_pretrain.py --case everyday-mnist-n100 --seeds 1
    python benchmarks/victims_pretrain.py --quick            # the smallest of each kind, one seed

Claim: with weight decay exactly n singular values of [W1, b1] stand above what is left of the start; with a small start
fewer do, since the start never decays. A row per victim goes to benchmarks/results/victims.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ.setdefault("FOLDLINE_DATA", str(HERE.parent.parent / "shared" / "data"))

CASES = {   # name: (preset, data set, n)
    "small-start-mnist-n20": ("small-start", "mnist", 20),
    "small-start-mnist-n100": ("small-start", "mnist", 100),
    "small-start-cifar10-n100": ("small-start", "cifar10", 100),
    "standard-start-cifar10-n10": ("standard-start", "cifar10", 10),
    "standard-start-cifar10-n50": ("standard-start", "cifar10", 50),
    "small-start-cifar10-n50": ("small-start", "cifar10", 50),
    "small-start-cifar10-n500": ("small-start", "cifar10", 500),
    "small-start-cifar10-n1000": ("small-start", "cifar10", 1000),
    "small-start-100-cifar10-n500": ("small-start-100", "cifar10", 500),
    "small-start-deep4-cifar10-n500": ("small-start-deep4", "cifar10", 500),
    "small-start-deep5-cifar10-n500": ("small-start-deep5", "cifar10", 500),
    "small-start-biases-cifar10-n500": ("small-start-biases", "cifar10", 500),
    "everyday-mnist-n20": ("everyday", "mnist", 20),
    "everyday-mnist-n50": ("everyday", "mnist", 50),
    "everyday-mnist-n100": ("everyday", "mnist", 100),
    "everyday-cifar10-n50": ("everyday", "cifar10", 50),
    "everyday-mnist-n200": ("everyday", "mnist", 200),
    "everyday-cifar10-n100": ("everyday", "cifar10", 100),
    "everyday-mnist-n500": ("everyday-wide-batches", "mnist", 500),
    "everyday-cifar10-n200": ("everyday", "cifar10", 200),
    "everyday-cifar10-n500": ("everyday-wide-batches", "cifar10", 500),
}
QUICK = ("small-start-mnist-n20", "everyday-mnist-n20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, help="this seed only")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return
    from foldline.victims.cache import folder_of, victim
    from foldline.victims.store import ABOUT
    cases = options.case or (QUICK if options.quick else CASES)
    seeds = [options.seed] if options.seed is not None else range(1 if options.quick else options.seeds)
    print(f"{'victim':<31} {'seed':>4} {'loss':>9} {'test':>6} {'above edge':>10} {'ratio at n':>10} {'residual':>8} "
          f"{'seconds':>8}")
    for seed in seeds:
        for case in cases:
            name, data_set, n = CASES[case]
            fresh = not (folder_of(name, data_set, n, seed, None, None) / ABOUT).is_file()
            info = victim(name, data_set, n, seed).info
            k = info["kkt"]
            row = {"case": case, "seed": seed, "n": n, "edge_at_n": k["above_edge"] == n,
                   **{x: info[x] for x in ("steps", "train_loss", "test_accuracy", "seconds")},
                   **{x: k[x] for x in ("gap_at", "gap_ratio", "ratio_at_n", "start_edge", "above_edge", "residual",
                                        "residual_per_layer", "active", "on_margin", "margin_spread")}}
            print(f"{case:<31} {seed:>4} {row['train_loss']:>9.2e} {row['test_accuracy']:>6.3f} "
                  f"{k['above_edge']!s:>10} {k['ratio_at_n']:>10.1f} {k['residual_per_layer'][0]:>8.3f} "
                  f"{info['seconds']:>8.1f}", flush=True)
            if fresh:                                               # trained now, not read from the cache
                with (HERE / "results" / "victims.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    (HERE / "results").mkdir(exist_ok=True)
    main()
