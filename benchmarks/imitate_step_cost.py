"""Claim: a step of gradient matching costs at most 3.5x a plain training step of the same batch.

Both are timed in turn on the same network and rows (values and all outputs' gradients against values alone), forward,
backward and optimiser, one thread; CPU time, so that other programs do not count, median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import foldline as fl
from foldline.imitation.deep import prepared
from foldline.imitation.losses import Lesson, Pupil, joint_loss
from foldline.networks.presets import build
from foldline.oracles.explain import Recipe, explanations

CASES = {"1-layer": ("logistic", {}, (28, 28)), "2-layer": ("two-layer", {"width": 128}, (28, 28)),
         "conv": ("conv", {"width": 16}, (28, 28)), "conv-cifar": ("conv", {"width": 16}, (32, 32, 3)),
         "vgg11": ("vgg11", {"width": 8}, (32, 32, 3)),
         "vgg11-plain": ("vgg11", {"width": 8, "norm": False}, (32, 32, 3)),
         "resnet18": ("resnet18", {"width": 8}, (32, 32, 3))}


def stepper(student: torch.nn.Module, lesson: Lesson, lam: float) -> Callable[[], None]:
    pupil = Pupil(student, "logits", "logits", lesson_shape(student))
    lesson = prepared(pupil, lesson)                    # as imitate does: deep students compare smoothed gradients
    optimiser = torch.optim.Adam(student.parameters(), 1e-3, fused=True)
    rng = fl.generator(0)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        joint_loss(pupil, lesson, lam=lam, values="squared", rng=rng).backward()
        optimiser.step()
    return step


def lesson_shape(student: torch.nn.Module) -> tuple[int, ...]:
    shape = student.input_shape
    assert isinstance(shape, tuple)
    return shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    import imitate_common as ic
    torch.set_num_threads(1)
    for case in given.case:
        preset, arguments, shape = CASES[case]
        target, a, b = (build(preset, input_shape=shape, outputs=10, rng=fl.generator(s), **arguments).eval()
                        for s in range(3))
        d = int(torch.tensor(shape).prod())
        x = torch.rand(given.batch, d, generator=fl.generator(9))
        told = explanations(target)(x)
        both = Lesson(x, told.values, told.values.softmax(1), told.explanations, told.of, "logits", Recipe(), "signed",
                      1.0, 1.0)
        plain = Lesson(x, told.values, told.values.softmax(1), None, None, "logits", Recipe(), "signed", 1.0, 1.0)
        steps = {"plain": stepper(a, plain, 1.0), "gradient": stepper(b, both, 0.1)}
        took: dict[str, list[float]] = {name: [] for name in steps}
        for i in range(5 if given.quick else given.rounds):
            for name, step in steps.items():
                start = time.process_time()
                step()
                if i > 2:
                    took[name].append(time.process_time() - start)
        plain_s, gradient_s = (statistics.median(took[name]) for name in ("plain", "gradient"))
        row = {"case": case, "batch": given.batch, "plain_ms": round(1e3 * plain_s, 3),
               "gradient_ms": round(1e3 * gradient_s, 3), "ratio": round(gradient_s / plain_s, 3),
               "threads": torch.get_num_threads(), "reached": gradient_s <= 3.5 * plain_s}
        print(row, flush=True)
        ic.RESULTS.mkdir(exist_ok=True)
        with (ic.RESULTS / "imitate_step_cost.jsonl").open("a") as out:
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
