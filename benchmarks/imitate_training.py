"""Claim: what 10 Gaussian queries teach depends on how the target was trained, more than on how it is learned from.

The same convolutional network, trained on the same 50,000 MNIST images in six ways, is imitated from 10 gradients at
N(0, I) with the default settings (accuracy on the test images, three draws). Beside it, read off the target alone: how
much of the gradient at one noise point is common to all of them, and the cosine between that common part and the one
at images. The paper states 0.84 and not how its target was trained. Rows: results/imitate_training.jsonl.
"""

from __future__ import annotations

import argparse
import statistics

import imitate_common as ic
import torch
from torch import Tensor, nn

import foldline as fl
from foldline.oracles.explain import explanations

FILE = "imitate_training.jsonl"
TARGETS = ["conv-decay-3", "conv-decay-1", "conv-once", "conv", "conv-sgd-decay", "conv-sgd"]    # of imitate_common.py
POINTS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--values", action="store_true", help="values only instead of gradients")
    parser.add_argument("--table", action="store_true", help="print what the results file holds, with the measures")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.table:
        return table()
    for model in given.target:
        for seed in range(given.seeds):
            print(ic.line(ic.one(FILE, name="mnist", model=model, student="conv-wide", kind="gaussian",
                                 explain=None if given.values else "gradient", n=given.n, seed=seed, target_seed=0)),
                  flush=True)


def table() -> None:
    print("| target | its accuracy | common at noise | cosine to images | answers | accuracy (lowest to highest) |")
    print("| --- | --- | --- | --- | --- | --- |")
    held = [*ic.rows_in(FILE), *ic.rows_in("imitate_mnist.jsonl")]                  # the second: target "conv"
    for model in TARGETS:
        rows = [r for r in held if r["target"] == model and r["queries_from"] == "gaussian" and "accuracy" in r
                and r["student"] == "conv-wide" and r["n"] != 100]
        common, cosine = measures(ic.target(model, "mnist", 0))
        for explain, n in sorted({(str(r["explain"]), r["n"]) for r in rows}):
            got = [r["accuracy"] for r in rows if (str(r["explain"]), r["n"]) == (explain, n)]
            print(f"| {model} | {rows[0]['target_accuracy']:.4f} | {common:.2f} | {cosine:.2f} | {n:,} {explain} | "
                  f"{statistics.mean(got):.4f} ({min(got):.4f} to {max(got):.4f}) |")


def measures(f: nn.Module) -> tuple[float, float]:
    """Share of a noise point's gradient (all outputs, their mean taken off) that all noise points have in common, and
    the cosine of that part to the same at images, each pixel counting by its deviation."""
    _, _, kept = ic.split("mnist")
    images = ic.data("mnist").rows(kept, torch.float32)[:3000]
    at_noise = gradients(f, ic.queries("mnist", "gaussian", POINTS, fl.generator(3)))
    noise, image = at_noise.mean(0), gradients(f, images[:POINTS]).mean(0)
    weight = images.std(0)
    cosine = torch.cosine_similarity((noise * weight).flatten(), (image * weight).flatten(), 0)
    return float(noise.square().sum() / at_noise.square().sum((1, 2)).mean()), float(cosine)


def gradients(f: nn.Module, x: Tensor) -> Tensor:
    found = explanations(f)(x).explanations
    return found - found.mean(1, keepdim=True)


if __name__ == "__main__":
    main()
