"""Claim: from labels alone the span is recovered within 60 n k rows (n inputs, k units).

tanh 20-5-8-1 thresholded at 0: rank 5, angle 1e-4. ReLU 100-10-20-1: rank 10, angle 1e-4. MNIST-trained 784-10-20-10
argmax: rank 10 with at least 8 directions within 1e-2. `paper` is Algorithm 2
on the first case, with its threshold at 1.
"""

from __future__ import annotations

import time

import span_victims as sv
from torch import nn

import foldline as fl

CASES = ["tanh", "relu", "mnist", "paper"]


def main() -> None:
    given = sv.arguments(__doc__ or "", CASES)
    for case in given.case:
        for seed in given.seeds:
            k, threshold, accuracy = 5, 0.0, None
            if case in ("tanh", "paper"):
                net = sv.gaussian_net([20, 5, 8, 1], seed, bias=0.1 if case == "tanh" else 0.0, activation=nn.Tanh)
                if case == "paper":
                    # Its assumptions: no biases, and the output exceeds 1 often.
                    net[-1].weight.data *= 6
                    threshold = 1.0
            elif case == "relu":
                net, k = sv.gaussian_net([100, 10, 20, 1], seed, bias=0.1), 10
            else:
                (net, accuracy), k = sv.mnist_net([784, 10, 20, 10], seed), 10
            lb = fl.label_oracle(net, threshold=threshold)
            start = time.perf_counter()
            if case == "paper":
                r = fl.recover_span_from_labels(lb, rng=fl.generator(seed), method="paper", k=k)
            else:
                r = fl.recover_span_from_labels(lb, rng=fl.generator(seed))
            seconds = time.perf_counter() - start
            sines = sv.principal(r.basis, net[0].weight)
            worst, per = float(sines.max()) if len(sines) else float("nan"), r.queries / lb.dim / k
            close = int((sines <= 1e-2).sum())
            good = close >= 8 if case == "mnist" else worst <= 1e-4
            ok = r.rank == k and per <= 60 and good
            print(f"{case:6} seed {seed}  rank {r.rank:2} of {k}  rows {r.queries:7} = {per:5.1f} n k  "
                  f"angle {worst:.1e}  within 1e-2: {close}  {r.status.code}  {seconds:.1f} s  "
                  f"{'reached' if ok else 'MISSED'}", flush=True)
            sv.record("span_labels.jsonl", {
                "case": case, "seed": seed, "rank": r.rank, "rows": r.queries, "per_nk": per,
                "angle": worst if worst == worst else None, "close": close, "status": r.status.code,
                "seconds": seconds, "accuracy": accuracy, "reached": ok})


if __name__ == "__main__":
    main()
