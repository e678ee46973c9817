"""When does it work? Recovery from weights against n, decay, the start's scale and shape, with the spectrum drawn in.

    python benchmarks/reconstruct_map.py --part decay --seeds 1
    python benchmarks/reconstruct_map.py --quick                  # three victims
    python benchmarks/reconstruct_map.py --draw                   # docs/images/reconstruct-map.png from the rows

Claim: the spectrum of [W1, b1] tells an owner, who knows n, before any attack is run, whether the training set leaks.
The statistic is the share of the n directions that stand above the noise edge. (Whether the very last one does, s_n /
edge, is too strict: one row far from the margin has hardly any multiplier, and the others leak all the same.)
Victims are trained in the span's coordinates (docs/victims.md). A row per victim goes to
benchmarks/results/reconstruct_map.jsonl; a victim that has a row is not run again without --again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
os.environ.setdefault("FOLDLINE_DATA", str(HERE.parent.parent / "shared" / "data"))
RESULTS = HERE / "results" / "reconstruct_map.jsonl"
PICTURE = HERE.parent / "docs" / "images" / "reconstruct-map.png"

BASE: dict[str, Any] = {"data_set": "mnist", "pool": 1, "n": 50, "width": 200, "decay": 5e-3, "steps": 6000,
                        "std": None, "optimiser": "sgd"}
SMALL = {"optimiser": "log-loss", "decay": 0.0, "steps": 20_000}


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for n in (10, 20, 50, 100, 150):
        yield "n", {"n": n}
    for n in (20, 50, 100, 200):
        yield "n, CIFAR-10", {"n": n, "data_set": "cifar10", "width": 300}
    for decay in (0.0, 5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3):
        yield "decay", {"decay": decay}
    for steps in (1000, 2000, 3000, 4000):
        yield "decay", {"steps": steps}                             # the same products by fewer steps
    for std in (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, None):
        yield "start", {**SMALL, "std": std}
    for n in (20, 100):
        for std in (1e-5, 1e-4, 1e-3):
            yield "start", {**SMALL, "std": std, "n": n}
    for pool in (2, 4):                                             # 14 x 14 and 7 x 7 pixels
        for n in (10, 20, 50):
            yield "n / d", {"pool": pool, "n": n}
    for width in (25, 45, 55, 70, 100, 400):
        yield "n / width", {"width": width}


def measured(part: str, case: dict[str, Any], seed: int) -> dict[str, Any]:
    import torch

    import foldline as fl
    from foldline.reconstruction.noise_edge import noise_edge
    from foldline.reconstruction.weights import first_layer
    from foldline.victims.recipes import EVERYDAY, SMALL_START
    from foldline.victims.train import train_victim
    c = BASE | case
    recipe = (replace(SMALL_START, steps=c["steps"], first_layer_std=c["std"]) if c["optimiser"] == "log-loss" else
              replace(EVERYDAY, weight_decay=c["decay"], steps=c["steps"], first_layer_std=c["std"]))
    start = time.process_time()
    v = train_victim("everyday", rng=fl.generator(seed), n=c["n"], data_set=pooled(c["data_set"], c["pool"]),
                     recipe=recipe, arguments={"widths": (c["width"], c["width"])}, in_span=True)
    trained = time.process_time() - start
    n, A = len(v.data.x), first_layer(v.module)[0]
    edge, _ = noise_edge(A)
    s = edge.singular_values
    live = int((v.data.x.std(0) > 0).sum())
    row: dict[str, Any] = {
        "part": part, **c, "seed": seed, "d": v.data.x.shape[1], "live": live, "loss": v.info["train_loss"],
        "rank": edge.rank, "gap": edge.gap if math.isfinite(edge.gap) else None,
        "height": float(s[n - 1]) / edge.edge if len(s) >= n and math.isfinite(edge.edge) else None,
        "ratio_at_n": float(s[n - 1] / s[n]) if len(s) > n else None, "train_cpu": round(trained, 1)}
    start = time.process_time()
    shape = tuple(v.info["image_shape"])
    try:
        found = fl.reconstruct(v.module, rng=fl.generator(seed), image_shape=shape, mean=v.mean)
    except fl.errors.FoldlineError as error:
        return row | {"status": f"{type(error).__name__}: {error}", "recovered": 0.0}
    row |= {"status": found.status.code, "exact": found.certificate.exact,
            "cpu": round(time.process_time() - start, 1)}
    score = fl.score_reconstruction(found.samples + v.mean, v.data.x.to(torch.float64), v.data.x_unseen.double(),
                                    image_shape=shape)
    return row | {"recovered": score.recovered, "threshold": score.threshold, "above": score.above}


def pooled(name: str, pool: int) -> Any:
    """The data set with pixels averaged over pool x pool."""
    import torch

    from foldline.victims.datasets import load_dataset
    data = load_dataset(name)
    if pool == 1:
        return data

    def smaller(pixels: Any) -> Any:
        images = pixels.float().reshape(len(pixels), 1, *data.image_shape)
        return torch.nn.functional.avg_pool2d(images, pool).round().reshape(len(pixels), -1).to(torch.uint8)

    shape = (data.image_shape[0] // pool, data.image_shape[1] // pool)
    return replace(data, pixels=smaller(data.pixels), pixels_test=smaller(data.pixels_test), image_shape=shape)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[k] for k in (*BASE, "seed"))


def rows() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    last = {key(r): r for r in map(json.loads, RESULTS.read_text().splitlines())}
    return list(last.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=sorted({p for p, _ in cases()}))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--draw", action="store_true", help="only the picture and the summary, from the rows")
    options = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    if not options.draw:
        known = set() if options.again else {key(r) for r in rows()}
        wanted = [(p, c) for p, c in cases() if not options.part or p in options.part]
        print(f"{'part':<12}{'case':<58}{'rank':>5}{'s_n / edge':>12}{'recovered':>10}{'status':>15}{'CPU s':>14}")
        for part, case in wanted[:3] if options.quick else wanted:
            for seed in range(options.seeds):
                if key(BASE | case | {"seed": seed}) in known:
                    continue
                row = measured(part, case, seed)
                with RESULTS.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                height = "-" if row["height"] is None else f"{row['height']:.3g}"
                said = ", ".join(f"{k} {v}" for k, v in case.items())
                print(f"{part:<12}{said:<58}{row['rank']:>5}{height:>12}{row['recovered']:>10.0%}{row['status']:>15}"
                      f"{row['train_cpu']:>7}{row.get('cpu', 0):>7}", flush=True)
    from reconstruct_map_draw import draw, summary
    print(summary(rows()))
    if options.draw:
        draw(rows(), PICTURE)


if __name__ == "__main__":
    main()
