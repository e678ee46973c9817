"""What SmoothGrad's noise leaves of a target: its own accuracy on noisy, stretched images.

SmoothGrad at x tells about f around x + z. Where the target answers hardly better than chance there, no student can
learn its answers at x from it; where stretching the image raises that accuracy, stretched points are the better ones to
ask (foldline.imitation.queries.placed). The first 1,000 images of the query pool, one draw of noise.
"""

from __future__ import annotations

import json

import imitate_common as ic
import torch

import foldline as fl
from foldline.imitation.queries import placed

FILE = "imitate_noise.jsonl"
TARGETS = (("mnist", "2-layer"), ("mnist", "conv"), ("cifar10", "conv"), ("cifar10", "vgg11-plain"),
           ("cifar10", "resnet18"))
STRETCHES = (1.0, 1.5, 2.0, 3.0)
SIGMAS = (0.0, 0.4, 1.0)                # of the pixels' deviation


def main() -> None:
    lines = []
    for name, model in TARGETS:
        d, _, rows = ic.split(name)
        x, y = d.rows(rows, torch.float32)[:1000], d.y[rows][:1000]
        f, rng = ic.target(model, name, 0), fl.generator(0)
        row: dict[str, str | float] = {"data": name, "target": model}
        for stretch in STRETCHES:
            for sigma in SIGMAS:
                points = placed(x, x, stretch)[0] + sigma * ic.PIXEL_STD[name] * torch.randn(x.shape, generator=rng)
                with torch.no_grad():
                    right = float((f(points).argmax(1) == y).float().mean())
                row[f"stretch {stretch:g} sigma {sigma:g}"] = round(right, 3)
        print(json.dumps(row), flush=True)
        lines.append(json.dumps(row))
    ic.RESULTS.joinpath(FILE).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
