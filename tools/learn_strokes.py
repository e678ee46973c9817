"""Makes src/foldline/reconstruction/strokes.safetensors: what a network learns of pen strokes (strokes.py).

    .venv/bin/python tools/learn_strokes.py [--out FILE] [--steps N]

Eight minutes on two cores. Kept at half precision: 1 MB, and as good (its worth is measured after rounding).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import foldline as fl
from foldline.randomness import Streams
from foldline.reconstruction.separator import save_separator, train_separator
from foldline.reconstruction.strokes import FILE, SIDES, pen_strokes

PICTURES, STEPS = 60_000, 6000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    streams = Streams(fl.generator(given.seed))
    rows = pen_strokes(PICTURES, SIDES[:2], rng=streams("strokes"))

    def show(stage: str, said: dict[str, float]) -> None:
        if said["done"] % 500 == 0:
            print(f"{stage}: {said['done']:.0f} of {said['total']:.0f}, error {said['error']:.3f}", flush=True)

    taught = train_separator(rows, SIDES[:2], rng=streams("separator"), steps=given.steps, drawn=True, progress=show)
    save_separator(replace(taught, network=taught.network.half()), given.out)
    print(f"{given.out.name}: takes {taught.worth:.1%} of the error away from mixtures of held-out strokes, "
          f"{given.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
