"""What the imitation benchmarks share: targets trained once per machine, the paper's split, rows that resume."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import foldline as fl
from foldline.imitation.committee import MOST_QUERIES
from foldline.imitation.match import as_row
from foldline.imitation.optimise import Plan
from foldline.imitation.queries import (
    blended_rows,
    drawn_rows,
    gaussian_rows,
    placed,
    smooth_rows,
    spread_rows,
    stretch_against,
)
from foldline.imitation.soften import NOISE_SOFTNESS
from foldline.judge.imitation import score_imitation
from foldline.networks.presets import build, initialise
from foldline.randomness import Streams
from foldline.victims.cache import cache_folder
from foldline.victims.datasets import load_dataset

HERE = Path(__file__).parent
os.environ.setdefault("FOLDLINE_DATA", str(HERE.parent.parent / "shared" / "data"))
RESULTS = HERE / "results"
PIXEL_MEAN = {"mnist": 0.1307, "cifar10": 0.4734}       # of pixels in [0, 1]
PIXEL_STD = {"mnist": 0.3081, "cifar10": 0.2516}        # sigma_D of Appendix D
MODELS: dict[str, tuple[str, dict[str, Any]]] = {       # the networks of paper 000, Section 4, at widths that fit here
    "1-layer": ("logistic", {}),
    "2-layer": ("two-layer", {"width": 128}),
    "2-layer-wide": ("two-layer", {"width": 1024}),     # wide ones are students only
    "conv": ("conv", {"width": 16}),
    "conv-wide": ("conv", {"width": 16, "hidden": 512}),
    "conv-broad": ("conv", {"width": 64, "hidden": 512}),
    "conv-5x5": ("conv", {"width": 10, "kernel": 5}),
    "conv-5x5-wide": ("conv", {"width": 10, "kernel": 5, "hidden": 512}),
    # The example that comes with PyTorch, 10 and 20 channels, 5 x 5 without padding, 320-50-10: two convolutions, each
    # with a max-pool, and two dense layers, as paper 000 describes its own without sizes.
    "conv-example": ("conv", {"width": 10, "kernel": 5, "hidden": 50, "padded": False}),
    "conv-example-wide": ("conv", {"width": 10, "kernel": 5, "hidden": 512, "padded": False}),
    "vgg11": ("vgg11", {"width": 8}),
    "vgg11-plain": ("vgg11", {"width": 8, "norm": False}),      # as published, without batch normalisation
    "vgg11-plain-wide": ("vgg11", {"width": 16, "norm": False}),
    "resnet18": ("resnet18", {"width": 8, "start": "he"}),
}
SOLVED_FROM = 20                                        # queries of 2-layer above which algebra may do
QUERY_ROWS = {"mnist": 10_000, "cifar10": 4_000}        # kept from the target for queries; the paper keeps 10,000


@dataclass(frozen=True)
class Training:
    """How a target was trained on labels: one cycle of the learning rate, batches of 128."""

    epochs: int
    rate: float = 3e-3
    decay: float = 0.0                                  # AdamW's, or SGD's weight decay
    momentum: float | None = None                       # SGD with this momentum instead of Adam


TRAINING = {"1-layer": Training(5), "2-layer": Training(5), "conv": Training(3), "conv-5x5": Training(3),
            "conv-example": Training(3), "vgg11": Training(8), "resnet18": Training(6),
            "vgg11-plain": Training(10, rate=2e-3), "cifar10 conv": Training(10)}
# The same convolutional network, trained otherwise (imitate_training.py).
TRAINED = {"conv-once": Training(1), "conv-decay-1": Training(3, decay=1.0), "conv-decay-3": Training(3, decay=3.0),
           "conv-sgd": Training(6, rate=0.1, momentum=0.9),
           "conv-sgd-decay": Training(6, rate=0.1, momentum=0.9, decay=1e-3)}
MODELS |= dict.fromkeys(TRAINED, MODELS["conv"])
TRAINING |= TRAINED

FROM_ROWS = ("data", "spread", "blended")               # who asks such points has the pile that they come from

_loaded: dict[str, Any] = {}


def method_of(explain: str | None, kind: str, name: str, n: int, student: str, model: str) -> int:
    """Raised where training changed: rows of another method stay in the file, and stand apart. 3: softened folds.
    4: inputs count alike where their variances differ by chance only (losses.query_metric). 5: the mean of several
    students where explained queries are few (committee.py). 6: students of many layers compare smoothed gradients
    (deep.py). 9: and choose between two rates at lambda 0.1 in 2,400 steps above 32 queries (8: 1,200, 7: 800).
    12: SmoothGrad is asked at points stretched by how rough its noise is beside the rows (10: by its deviation), in
    1,600 steps above 32 queries. 11: one hidden layer is solved for if the explanations fix it
    (imitation/one_hidden.py). 13: up to 32 explained queries are carried to unlabelled pictures
    (unlabelled.py; on CIFAR-10 it turns itself down)."""
    explained = explain not in (None, "cross_entropy")
    if explained and student.startswith(("vgg11", "resnet18")):
        return 9
    if explain == "gradient" and model == "2-layer" and student.startswith("2-layer") and n > SOLVED_FROM:
        return 11
    if explained and n <= MOST_QUERIES and student != "1-layer" and kind in FROM_ROWS and name == "mnist":
        return 13
    if explain == "smoothgrad" and student != "1-layer":
        return 12
    if explained and n <= MOST_QUERIES and student != "1-layer":
        return 5
    return 4 if explained and (kind in ("gaussian", "gaussian-unit", "smooth") or name == "cifar10") else 2


def rows_in(file: str) -> list[dict[str, Any]]:
    """What the results file holds of the present way of training."""
    path = RESULTS / file
    rows = [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []
    return [r for r in rows if r.get("method") ==
            method_of(r["explain"], r["queries_from"], r["data"], r["n"], r["student"], r["target"])]


def data(name: str) -> Any:
    if name not in _loaded:
        _loaded[name] = load_dataset(name)
    return _loaded[name]


def split(name: str) -> tuple[Any, slice, slice]:
    """The target's training rows come first, the rows kept for queries are the last ones."""
    d = data(name)
    cut = len(d.pixels) - QUERY_ROWS[name]
    return d, slice(0, cut), slice(cut, None)


def network(model: str, name: str, rng: torch.Generator) -> nn.Module:
    preset, arguments = MODELS[model]
    return build(preset, input_shape=data(name).image_shape, outputs=10, rng=rng, **arguments)


def target(model: str, name: str, seed: int) -> nn.Module:
    """Trained on labels as TRAINING says; read back from the cache if it is there."""
    sizes = "-".join(map(str, MODELS[model][1].values()))
    path = cache_folder() / "imitate" / f"{name}-{model}-{sizes}-{seed}.safetensors"
    if path.is_file():
        return fl.load(path).eval()
    d, rows, _ = split(name)
    streams = Streams(fl.generator(seed))
    net = network(model, name, streams("start"))
    if model == "vgg11-plain":
        initialise(net, streams("start"), "he")
    x, y = d.rows(rows, torch.float32), d.y[rows]
    how = TRAINING.get(f"{name} {model}") or TRAINING[model]
    per_epoch = len(x) // 128
    optimiser: torch.optim.Optimizer
    if how.momentum is None:
        optimiser = torch.optim.AdamW(net.parameters(), how.rate, weight_decay=how.decay)
    else:
        optimiser = torch.optim.SGD(net.parameters(), how.rate, how.momentum, weight_decay=how.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, how.rate, total_steps=how.epochs * per_epoch)
    net.train()
    start = time.perf_counter()
    for epoch in range(how.epochs):
        order = torch.randperm(len(x), generator=streams(f"epoch {epoch}"))
        for i in range(per_epoch):
            batch = order[128 * i:128 * (i + 1)]
            images = x[batch]
            if name == "cifar10":                       # mirrored half of the time: 16,000 images are few
                flip = torch.rand(len(batch), generator=streams(f"mirror {epoch} {i}")) < 0.5
                mirrored = images.reshape(-1, 32, 32, 3).flip(2).reshape(len(batch), -1)
                images = torch.where(flip[:, None], mirrored, images)
            optimiser.zero_grad()
            F.cross_entropy(net(images), y[batch]).backward()
            optimiser.step()
            schedule.step()
    net.eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    fl.save(net, path)
    print(f"trained {name} {model} seed {seed} in {time.perf_counter() - start:.0f} s", flush=True)
    return net


def queries(name: str, kind: str, n: int, rng: torch.Generator) -> Tensor:
    d, _, rows = split(name)
    if kind == "gaussian":              # N(0, I) in standardised inputs, as such networks usually take them
        return gaussian_rows(n, d.pixels.shape[1], rng=rng, mean=PIXEL_MEAN[name], std=PIXEL_STD[name]).float()
    if kind == "gaussian-unit":         # N(0, I) in the pixels' own scale
        return gaussian_rows(n, d.pixels.shape[1], rng=rng).float()
    if kind == "smooth":                # Gaussian fields, the pixels' mean and deviation
        return smooth_rows(n, d.image_shape, rng=rng, mean=PIXEL_MEAN[name], std=PIXEL_STD[name]).float()
    pool = d.rows(rows, torch.float32)
    if kind == "blended":
        return blended_rows(pool, n, rng=rng, input_shape=d.image_shape).float()
    return spread_rows(pool, n, rng=rng) if kind == "spread" else drawn_rows(pool, n, rng=rng)


def one(file: str, *, name: str, model: str, student: str, kind: str, explain: str | None, n: int, seed: int,
        target_seed: int, sigma_times: float = 1.0, samples: int = 10, steps: int | None = None,
        committee: int | None = None, pile: bool = False) -> dict[str, Any]:
    """One row: asked, taught, scored on the 10,000 test images. Rows that are in the file already are read from it."""
    case = {"data": name, "target": model, "student": student, "queries_from": kind, "explain": explain, "n": n,
            "seed": seed, "target_seed": target_seed, "method": method_of(explain, kind, name, n, student, model)}
    if explain == "smoothgrad":
        case |= {"sigma_times": sigma_times, "samples": samples}
    fixed = {k: v for k, v in (("steps", steps), ("committee", committee)) if v is not None}
    apart = fixed | ({"pile": True} if pile else {})
    case |= {f"fixed_{k}": v for k, v in apart.items()}     # rows of a shortened run stand apart
    path = RESULTS / file
    for row in rows_in(file):
        same = {k for k in row if k.startswith("fixed_")} == {f"fixed_{k}" for k in apart}
        if same and all(row.get(k) == v for k, v in case.items()):
            return row
    f = target(model, name, target_seed)
    streams = Streams(fl.generator(1000 + seed))
    x = queries(name, kind, n, streams("queries"))
    sigma, scale = sigma_times * PIXEL_STD[name], 1.0
    taught = network(student, name, streams("student"))
    pool = data(name).rows(split(name)[2], torch.float32) if kind in FROM_ROWS else None
    if explain == "smoothgrad" and pool is not None:                # as foldline imitate does by itself
        x, scale = placed(x, pool, stretch_against(sigma, pool, taught, data(name).image_shape))
    start = time.perf_counter()
    cpu = time.process_time()
    try:
        told, plans, output = explain, None, "all"
        if explain == "gradient-top":                   # the predicted output's gradient only, as APIs answer
            told, output = "gradient", "top"
        if explain == "cross_entropy":                  # values with the paper's l_M; only the rate is chosen
            told, plans = None, [Plan(lr, 1.0, steps or 1500, 64, "cross_entropy") for lr in (3e-3, 1e-3)]
        result = fl.imitate(f, taught, x, told, rng=streams("imitate"),
                            output=output, samples=samples, sigma=sigma, scale=scale, plans=plans,
                            soft=NOISE_SOFTNESS if kind.startswith("gaussian") else 0.0,
                            unlabelled=pool if pile or case["method"] == 13 else None, **fixed)
        d = data(name)
        score = score_imitation(result.network, f, d.pixels_test.float() / d.white, d.y_test)
        row = {**case, **asdict(score), **as_row(result)}
    except Exception as error:                          # a failure is a row
        row = {**case, "status": "failed", "error": f"{type(error).__name__}: {error}"}
    row |= {"seconds": round(time.perf_counter() - start, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    RESULTS.mkdir(exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps(row) + "\n")
    return row


def line(row: dict[str, Any]) -> str:
    what = f"{row['data']:7} {row['target']:8} by {row['student']:8} {row['queries_from']:8} {row['explain']!s:13} " \
           f"n {row['n']:5} seed {row['seed']}"
    what += "".join(f" {k.removeprefix('fixed_')} {v}" for k, v in row.items() if k.startswith("fixed_"))
    if "accuracy" not in row:
        return f"{what}  {row['status']}: {row.get('error', '')}"
    share = row["accuracy"] / row["target_accuracy"]
    return f"{what}  accuracy {row['accuracy']:.4f} of {row['target_accuracy']:.4f} ({share:.1%})  agreement " \
           f"{row['agreement']:.4f}  {row['status']}  {row['cpu_seconds']:.0f} s cpu, {row['seconds']:.0f} s"
