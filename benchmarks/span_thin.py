"""Claim: on the paper's thin networks (Figure 1) the adaptive points recover at least as many directions as its
Gaussian ones, from every number of gradients.

Rank against gradients asked, for 784-80-[widths]: random (Gaussian weights, one output) and trained on MNIST (ten
outputs, gradients of the first). The paper's rank counts singular values above 1e-5 of the largest; ours is the gap
test's. The curves are averages over seeds; `worst` is the smallest lead of the adaptive points over all seeds and
counts.
"""

from __future__ import annotations

import span_victims as sv
import torch

import foldline as fl
from foldline.randomness import Streams

WIDTHS = {"6-3": [6, 3], "10": [10], "3": [3], "6-3-3": [6, 3, 3]}
COUNTS = [10, 20, 40, 60, 80, 100, 150, 200, 300]
CASES = [f"{kind}-{name}" for kind in ("random", "trained") for name in WIDTHS]


def paper_ranks(net: torch.nn.Module, seed: int) -> list[int]:
    """Algorithm 1's points are drawn from the stream that the adaptive search starts with: both begin at the same
    directions, and what differs is what is done after an answer."""
    rng = Streams(fl.generator(seed))("stream")
    x = torch.stack([torch.randn(784, generator=rng, dtype=torch.float64) for _ in range(COUNTS[-1])])
    _, grad = fl.gradient_oracle(net)(x)
    ranks = []
    for m in COUNTS:
        s = torch.linalg.svdvals(grad[:m])
        ranks.append(int((s > 1e-5 * s[0]).sum()) if float(s[0]) > 0 else 0)
    return ranks


def adaptive_ranks(net: torch.nn.Module, seed: int) -> tuple[list[int], fl.Status, int, float]:
    r = fl.recover_span(fl.gradient_oracle(net, budget=COUNTS[-1]), rng=fl.generator(seed), patience=10_000)
    after = [0, *r.ranks.tolist()]                              # one row per gradient asked
    ranks = [after[min(m, len(after) - 1)] for m in COUNTS]
    free = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(seed))
    return ranks, free.status, free.queries, sv.angle(free.basis, net[0].weight)


def main() -> None:
    given = sv.arguments(__doc__ or "", CASES)
    print(f"{'case':16}{'':10}" + "".join(f"{m:7}" for m in COUNTS))
    for case in given.case:
        kind, name = case.split("-", 1)
        paper, ours, notes = [], [], []
        for seed in given.seeds:
            if kind == "random":
                net, accuracy = sv.gaussian_net([784, 80, *WIDTHS[name], 1], seed), None
            else:
                net, accuracy = sv.mnist_net([784, 80, *WIDTHS[name], 10], seed, epochs=1)
            paper.append(paper_ranks(net, seed))
            ranks, status, rows, off = adaptive_ranks(net, seed)
            ours.append(ranks)
            notes.append((status.code, rows, off))
            sv.record("span_thin.jsonl", {"case": case, "seed": seed, "counts": COUNTS, "paper": paper[-1],
                                          "adaptive": ranks, "accuracy": accuracy, "status": status.code, "rows": rows,
                                          "angle": off if off == off else None})
        P, A = torch.tensor(paper).double(), torch.tensor(ours).double()
        print(f"{case:16}{'paper':10}" + "".join(f"{v:7.1f}" for v in P.mean(0).tolist()))
        print(f"{'':16}{'adaptive':10}" + "".join(f"{v:7.1f}" for v in A.mean(0).tolist())
              + f"   worst lead {int((A - P).min())}", flush=True)
        print("   left to itself: " + ", ".join(f"{c} at {q}" for c, q, _ in notes)
              + f"; worst angle {max(o for _, _, o in notes):.1e}", flush=True)


if __name__ == "__main__":
    main()
