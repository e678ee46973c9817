"""Claim: on the paper's thin networks (Figure 1) the adaptive points recover at least as many directions as its
Gaussian ones, from every number of gradients.

Rank against gradients asked, for 784-80-[widths]: random (Gaussian weights, one output) and trained on MNIST (ten
outputs, gradients of the first). The paper's rank counts singular values above 1e-5 of the largest; ours is the gap
test's. Both start from the same first point and go on as they do; a network's curves are means over 3 draws of it, and
the table's over networks. `worst` is the smallest lead on a single network at any count.
"""

from __future__ import annotations

import span_victims as sv
import torch

import foldline as fl
from foldline.randomness import Streams

WIDTHS = {"6-3": [6, 3], "10": [10], "3": [3], "6-3-3": [6, 3, 3]}
COUNTS = [2, 5, 10, 20, 40, 60, 80, 100, 150]
DRAWS = 3
CASES = [f"{kind}-{name}" for kind in ("random", "trained") for name in WIDTHS]


def paper_ranks(net: torch.nn.Module, seed: int) -> list[float]:
    """Mean rank over draws of Algorithm 1's points, for each of COUNTS."""
    ranks = torch.zeros(len(COUNTS), dtype=torch.float64)
    for draw in range(DRAWS):
        rng = Streams(fl.generator(1000 * draw + seed))("stream")       # the adaptive search draws its first point so
        x = torch.stack([torch.randn(784, generator=rng, dtype=torch.float64) for _ in range(COUNTS[-1])])
        _, grad = fl.gradient_oracle(net)(x)
        for i, m in enumerate(COUNTS):
            s = torch.linalg.svdvals(grad[:m])
            ranks[i] += float((s > 1e-5 * s[0]).sum()) if float(s[0]) > 0 else 0.0
    return (ranks / DRAWS).tolist()


def adaptive_ranks(net: torch.nn.Module, seed: int) -> tuple[list[float], fl.Status, int, float]:
    ranks = torch.zeros(len(COUNTS), dtype=torch.float64)
    for draw in range(DRAWS):
        r = fl.recover_span(fl.gradient_oracle(net, budget=COUNTS[-1]), rng=fl.generator(1000 * draw + seed),
                            patience=10_000)
        after = [0, *r.ranks.tolist()]                          # one row per gradient asked
        ranks += torch.tensor([after[min(m, len(after) - 1)] for m in COUNTS])
    free = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(seed))
    return (ranks / DRAWS).tolist(), free.status, free.queries, sv.angle(free.basis, net[0].weight)


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
              + f"   worst lead {float((A - P).min()):.1f}  "
              + ("reached" if bool((A.mean(0) >= P.mean(0) - 1e-9).all()) else "MISSED"), flush=True)
        print("   left to itself: " + ", ".join(f"{c} at {q}" for c, q, _ in notes)
              + f"; worst angle {max(o for _, _, o in notes):.1e}", flush=True)


if __name__ == "__main__":
    main()
