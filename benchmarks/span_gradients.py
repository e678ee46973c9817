"""Claim: 784-80-[40,30,20,10], random and trained on MNIST: rank 80 from at most 82 gradients (angle 1e-8), or from at
most 1.03 x 82 x 785 values (angle 1e-6).

Random networks have one output, trained ones ten; as in the paper gradients are those of the first output. From values
the trained network answers all ten.
"""

from __future__ import annotations

import time

import span_victims as sv
import torch

import foldline as fl

CASES = ["random-gradients", "trained-gradients", "random-values", "trained-values"]


def main() -> None:
    given = sv.arguments(__doc__ or "", CASES)
    for case in given.case:
        weights, kind = case.split("-")
        for seed in given.seeds:
            if weights == "random":
                net, accuracy = sv.gaussian_net([784, 80, 40, 30, 20, 10, 1], seed), float("nan")
            else:
                net, accuracy = sv.mnist_net([784, 80, 40, 30, 20, 10, 10], seed)
            true_rank = int(torch.linalg.matrix_rank(net[0].weight.detach()))
            oracle = fl.gradient_oracle(net) if kind == "gradients" else fl.value_oracle(net)
            start = time.perf_counter()
            r = fl.recover_span(oracle, rng=fl.generator(seed))
            seconds = time.perf_counter() - start
            off = sv.angle(r.basis, net[0].weight)
            limit = 82 if kind == "gradients" else 1.03 * 82 * 785
            ok = r.rank == 80 and r.queries <= limit and off <= (1e-8 if kind == "gradients" else 1e-6)
            print(f"{case:18} seed {seed}  rank {r.rank:3} of {true_rank}  rows {r.queries:6}  angle {off:.1e}  gap "
                  f"{r.certificate.gap:.1e}  null change {r.certificate.null_change:.0e}  {r.status.code}  "
                  f"{seconds:.1f} s  accuracy {accuracy:.3f}  {'reached' if ok else 'MISSED'}", flush=True)
            sv.record("span_gradients.jsonl", {
                "case": case, "seed": seed, "rank": r.rank, "rows": r.queries, "angle": off, "gap": r.certificate.gap,
                "status": r.status.code, "seconds": seconds,
                "accuracy": accuracy if accuracy == accuracy else None, "reached": ok})


if __name__ == "__main__":
    main()
