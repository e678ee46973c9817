"""Claim: on MNIST, noise ten times as long as the image, in the null space of a recovered span, changes no prediction
of 1000 test images and no logit by more than 1e-6 relative.

Also: how the outputs move when only part of the span is known, and how much noise fits into the pixel box.
"""

from __future__ import annotations

import span_victims as sv

import foldline as fl
from foldline.span.obfuscate import obfuscate_in_box, output_change, partial_span_curve

CASES = ["full", "partial", "box"]


def main() -> None:
    given = sv.arguments(__doc__ or "", CASES)
    x = sv.mnist("test")[0][:1000].double()
    for seed in given.seeds:
        net, accuracy = sv.mnist_net([784, 80, 40, 30, 20, 10, 10], seed)
        span = fl.recover_span(fl.gradient_oracle(net), rng=fl.generator(seed))
        f = fl.value_oracle(net)
        if "full" in given.case:
            change = output_change(f, x, fl.obfuscate(x, span.basis, 10.0, rng=fl.generator(seed)))
            ok = change.kept == 1000 and change.largest_change <= 1e-6
            print(f"full     seed {seed}  rank {span.rank}  {span.queries} gradients  kept {change.kept} of "
                  f"{change.rows}  largest change {change.largest_change:.1e}  accuracy {accuracy:.3f}  "
                  f"{'reached' if ok else 'MISSED'}", flush=True)
            sv.record("span_obfuscation.jsonl", {"case": "full", "seed": seed, "rank": span.rank, "kept": change.kept,
                                                 "largest_change": change.largest_change, "reached": ok})
        if "partial" in given.case:
            ranks = [0, 20, 40, 60, 70, 75, 78, 79, 80]
            curve = partial_span_curve(f, x, span.directions, ranks, rng=fl.generator(seed))
            print(f"partial  seed {seed}  " + "  ".join(f"{r}: {c.kept / c.rows:.1%} {c.largest_change:.0e}"
                                                       for r, c in curve), flush=True)
            sv.record("span_obfuscation.jsonl", {"case": "partial", "seed": seed, "curve": [
                [r, c.kept, c.largest_change] for r, c in curve]})
        if "box" in given.case and seed < 3:
            part = x[:20]
            r = obfuscate_in_box(part, span.basis, 10.0, rng=fl.generator(seed))
            change = output_change(f, part, r.samples)
            print(f"box      seed {seed}  {r.status.message}  kept {change.kept} of {change.rows}  largest change "
                  f"{change.largest_change:.1e}  leak {float(r.leak.max()):.1e}", flush=True)
            sv.record("span_obfuscation.jsonl", {"case": "box", "seed": seed, "fits_median": float(r.fits.median()),
                                                 "fits_min": float(r.fits.min()), "kept": change.kept,
                                                 "largest_change": change.largest_change})


if __name__ == "__main__":
    main()
