"""Which steps on log(loss) decide how much a small-start victim leaks?

    python benchmarks/victims_early_steps.py --seeds 2
    python benchmarks/victims_early_steps.py --quick              # narrower, one seed

Claim: the bound on the first steps does. With a bound of 5 instead of 0.5 more directions stand above the edge of the
start; the same bound on the first five steps alone gives the same network, and after the first twenty it changes
nothing. With every step ten times smaller the bound matters little: it is the steps' size that leaves the flow's path.
MNIST, n = 100, d-1000-1000-1, to loss 1e-6, in the span's coordinates. Rows: results/victims_early_steps.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
os.environ.setdefault("FOLDLINE_DATA", str(HERE.parent.parent / "shared" / "data"))
STD = 1e-4

PLANS: dict[str, Callable[[int], tuple[float, float]]] = {      # step -> bound on the step, drop of log(loss)
    "0.5": lambda k: (0.5, 0.2),
    "0.05, drop 0.02": lambda k: (0.05, 0.02),
    "5": lambda k: (5.0, 0.2),
    "5 for 5 steps, then 0.5": lambda k: (5.0 if k < 5 else 0.5, 0.2),
    "0.5 for 20 steps, then 5": lambda k: (0.5 if k < 20 else 5.0, 0.2),
    "5, drop 0.02": lambda k: (5.0, 0.02),
}


def trained(seed: int, n: int, width: int, plan: Callable[[int], tuple[float, float]]) -> tuple[Any, int]:
    """([W1, b1] (h, d + 1), steps)"""
    import torch
    from torch import nn

    import foldline as fl
    from foldline.networks.presets import build
    from foldline.randomness import Streams
    from foldline.victims.datasets import load_dataset, subset
    from foldline.victims.fit import log_loss_step
    from foldline.victims.recipes import SMALL_START
    from foldline.victims.span_fit import coordinates
    from foldline.victims.train import centre, centred, shrink_first_layer
    streams = Streams(fl.generator(seed))
    chosen = subset(load_dataset("mnist"), n, "binary", rng=streams("subset"))
    net: Any = build("mlp", input_shape=(28, 28), outputs=1, rng=streams("start"), widths=(width, width),
                     biases="first")
    shrink_first_layer(net, STD, streams("small start"))
    C, Q = coordinates(centred(chosen.x, centre(chosen.x, "mean"), torch.float32))
    W = net[0].weight.detach().double()
    first = nn.Linear(Q.shape[1], width, bias=False)
    with torch.no_grad():
        first.weight.copy_(W @ Q)
    first.bias = net[0].bias
    net[0] = first
    rows = C.float()
    steps: dict[tuple[float, float], Any] = {}
    for k in range(20_000):
        bound, drop = plan(k)
        if (bound, drop) not in steps:
            steps[bound, drop] = log_loss_step(net, rows, chosen.y, replace(SMALL_START, lr=bound, drop=drop))
        if float(steps[bound, drop](k)) <= 1e-6:
            break
    inside = first.weight.detach().double() @ Q.T
    return torch.cat([inside + W - W @ Q @ Q.T, net[0].bias.detach().double()[:, None]], 1), k + 1


def main() -> None:
    import torch
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    width, n = (200, 40) if options.quick else (1000, 100)
    for seed in range(1 if options.quick else options.seeds):
        reference = None
        for name, plan in PLANS.items():
            A, steps = trained(seed, n, width, plan)
            reference = A if reference is None else reference
            s = torch.linalg.svdvals(A)
            edge = STD * (math.sqrt(A.shape[0]) + math.sqrt(A.shape[1]))
            row = {"plan": name, "seed": seed, "n": n, "width": width, "steps": steps,
                   "above_edge": int((s > 1.02 * edge).sum()), "s_half": float(s[n // 2 - 1]),
                   "cosine": float((A * reference).sum() / A.norm() / reference.norm())}
            print(f"seed {seed}  {name:<26} {steps:>5} steps, {row['above_edge']:>4} of {n} above the edge, cosine "
                  f"with the first {row['cosine']:.4f}", flush=True)
            if not options.quick:
                with (HERE / "results" / "victims_early_steps.jsonl").open("a") as out:
                    out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
