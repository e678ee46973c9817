"""Claim (paper 000, Figure 2, on CIFAR-10): conv within 3 points of the target from 100 gradient queries; VGG-11 and
ResNet-18, at a width that trains here, need at least 10x fewer queries with gradients than with values.

Targets are trained on 16,000 of the 20,000 images at hand, queries come from the other 4,000, accuracy is on the 10,000
test images. Rows are appended to results/imitate_cifar.jsonl and not computed twice.
"""

from __future__ import annotations

import argparse

import imitate_common as ic

FILE = "imitate_cifar.jsonl"
CASES: dict[str, tuple[str, str, str, str | None, list[int]]] = {
    "conv-gradient": ("conv", "conv-wide", "blended", "gradient", [10, 100]),
    "conv-broad-gradient": ("conv", "conv-broad", "blended", "gradient", [10, 30, 100]),
    "conv-broad-values": ("conv", "conv-broad", "data", None, [1000, 4000]),
    "conv-broad-smoothgrad": ("conv", "conv-broad", "data", "smoothgrad", [100]),
    "conv-data-gradient": ("conv", "conv-wide", "data", "gradient", [10, 100]),
    "conv-smoothgrad": ("conv", "conv-wide", "data", "smoothgrad", [100]),
    "conv-values": ("conv", "conv-wide", "data", None, [100, 1000, 4000]),
    "conv-smooth-gradient": ("conv", "conv-wide", "smooth", "gradient", [10]),
    "conv-gaussian-gradient": ("conv", "conv-wide", "gaussian", "gradient", [10]),
    "vgg11-wide-gradient": ("vgg11-plain", "vgg11-plain-wide", "data", "gradient", [100]),
    "vgg11-wide-values": ("vgg11-plain", "vgg11-plain-wide", "data", None, [1000]),
    "vgg11-gradient": ("vgg11-plain", "vgg11-plain", "data", "gradient", [10, 30, 100, 300]),
    "vgg11-smoothgrad": ("vgg11-plain", "vgg11-plain", "data", "smoothgrad", [100]),
    "vgg11-values": ("vgg11-plain", "vgg11-plain", "data", None, [100, 300, 1000, 3000]),
    "vgg11-norm-by-conv-gradient": ("vgg11", "conv-broad", "data", "gradient", [100]),     # with batch normalisation
    "vgg11-norm-by-conv-values": ("vgg11", "conv-broad", "data", None, [1000]),
    "resnet18-gradient": ("resnet18", "resnet18", "data", "gradient", [10, 30, 100, 300]),
    "resnet18-smoothgrad": ("resnet18", "resnet18", "data", "smoothgrad", [100]),
    "resnet18-values": ("resnet18", "resnet18", "data", None, [100, 300, 1000, 3000]),
    "resnet18-by-conv-gradient": ("resnet18", "conv-broad", "data", "gradient", [100]),
    "resnet18-by-conv-values": ("resnet18", "conv-broad", "data", None, [1000]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--n", type=int, nargs="*", help="only these numbers of queries")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one seed, at most 100 queries")
    parser.add_argument("--steps", type=int, help="fewer steps for the final training, to fit a short session")
    parser.add_argument("--committee", type=int, help="another committee than the default; such rows stand apart")
    given = parser.parse_args()
    for case in given.case:
        model, student, kind, explain, counts = CASES[case]
        for n in counts:
            if (given.n and n not in given.n) or (given.quick and n > 100):
                continue
            for seed in range(given.first_seed, given.first_seed + (1 if given.quick else given.seeds)):
                print(ic.line(ic.one(FILE, name="cifar10", model=model, student=student, kind=kind, explain=explain,
                                     n=n, seed=seed, target_seed=0, steps=given.steps, committee=given.committee)),
                      flush=True)


if __name__ == "__main__":
    main()
