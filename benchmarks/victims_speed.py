"""A training step against its matrix products alone, interleaved in one run.

    python benchmarks/victims_speed.py [--quick] [--case d784-w500-n100]

Claim: a full-batch step of the everyday recipe (forward, backward, SGD with momentum and decay) costs at most twice
its five matrix products; the rest is the optimiser's pass over the parameters. Rows go to results/victims_speed.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from foldline.networks.presets import build
from foldline.randomness import Streams, generator
from foldline.victims.fit import optimiser_of, stepper
from foldline.victims.recipes import EVERYDAY

CASES = {"d784-w500-n100": (784, 500, 100), "d784-w1000-n100": (784, 1000, 100), "d3072-w500-n100": (3072, 500, 100),
         "d3072-w1000-n500": (3072, 1000, 500)}


def products(x: torch.Tensor, W1: torch.Tensor, W2: torch.Tensor) -> None:
    """The products of one step: both layers forward, the second layer's two gradients, the first layer's one."""
    a = x @ W1.T                # (n, h)
    z = a @ W2.T                # (n, h)
    z.T @ a
    (z @ W2).T @ x


def measure(d: int, w: int, n: int, repeats: int) -> dict[str, float]:
    x, y = torch.randn(n, d, generator=generator(0)), torch.arange(n) % 2
    net = build("mlp", input_shape=(d,), outputs=1, widths=(w, w), rng=generator(1))
    step, _ = stepper(net, optimiser_of(net, EVERYDAY), x, y, EVERYDAY, Streams(generator(0)), 1)
    W1, W2 = net[0].weight.detach().clone(), net[2].weight.detach().clone()
    steps, bare = [], []
    for i in range(repeats + 3):
        t0 = time.process_time()
        step(i)
        t1 = time.process_time()
        products(x, W1, W2)
        steps.append(t1 - t0)
        bare.append(time.process_time() - t1)
    ms, bare_ms = 1e3 * median(steps[3:]), 1e3 * median(bare[3:])
    flops = 2 * n * (2 * d * w + 3 * w * w)
    return {"step_ms": ms, "products_ms": bare_ms, "ratio": ms / bare_ms, "gflops": flops / ms / 1e6,
            "seconds_6000_steps": 6 * ms, "threads": torch.get_num_threads()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    results = Path(__file__).resolve().parent / "results"
    results.mkdir(exist_ok=True)
    print(f"{'case':<18} {'step ms':>8} {'products':>8} {'ratio':>6} {'GFlop/s':>8} {'6,000 steps, s':>14} (CPU time)")
    for case in options.case or (["d784-w500-n100"] if options.quick else CASES):
        row = measure(*CASES[case], repeats=20 if options.quick else 60)
        print(f"{case:<18} {row['step_ms']:>8.2f} {row['products_ms']:>8.2f} {row['ratio']:>6.2f} "
              f"{row['gflops']:>8.1f} {row['seconds_6000_steps']:>14.1f}", flush=True)
        with (results / "victims_speed.jsonl").open("a") as file:
            file.write(json.dumps({"case": case, **row}) + "\n")


if __name__ == "__main__":
    main()
