"""The toy experiment of the paper: points on a circle, and candidates that the published loop draws to them.

    python benchmarks/reconstruct_toy.py                       # writes docs/images/toy.png
    python benchmarks/reconstruct_toy.py --quick --seeds 1     # fewer epochs, no picture
    python benchmarks/reconstruct_toy.py --folds-only --first-seed 3 --seeds 5

20 points on the unit circle with random labels, 100 candidates, no prior on them, a network 2-1000-1 (--depth 3 for
2-1000-1000-1) with a small first layer, trained to loss 1e-6. The paper's claim: candidates end at training points. Not
reproduced, and the row says why: `residual_at_truth` is what the training points themselves leave of theta with the
best non-negative multipliers. It lies above the residual of the loop's 100 free candidates: the minimum is elsewhere.

What the weights do show (toy_folds.py): units condense onto few lines, and these pass through training points. The
row says how nearly, and what the places where three of them meet are worth, beside lines of random directions.
A row per seed goes to benchmarks/results/reconstruct_toy.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from toy_folds import fold_lines, folds_row, meetings

import foldline as fl
from foldline.randomness import Streams
from foldline.reconstruction.kkt import residual, solve_kkt, squared_norm, theta_of
from foldline.victims.kkt_report import nonnegative_multipliers

HERE = Path(__file__).resolve().parent
NEAR = 0.05                     # of the circle's radius


def circle(n: int, streams: Streams) -> tuple[Tensor, Tensor]:
    """n points at even angles, so that none hides another; labels drawn until both classes are there."""
    angle = 2 * math.pi * (torch.arange(n) + 0.5 * torch.rand(n, generator=streams("angles"))) / n
    x = torch.stack([angle.cos(), angle.sin()], 1).double()
    y = torch.ones(n, dtype=torch.float64)
    y[torch.randperm(n, generator=streams("labels"))[:n // 2]] = -1
    return x, y


def trained(x: Tensor, y: Tensor, widths: list[int], streams: Streams, *, stop: float = 1e-6) -> nn.Sequential:
    """Steps on log(loss): the same path as gradient flow, walked faster (docs/victims.md)."""
    sizes, layers, rng = [x.shape[1], *widths, 1], [], streams("start")
    for i, (a, b) in enumerate(pairwise(sizes)):
        layer = nn.Linear(a, b, bias=i == 0, dtype=torch.float64)
        with torch.no_grad():
            scale = 1e-2 if i == 0 else 1 / math.sqrt(a)
            layer.weight.copy_(scale * torch.randn(b, a, generator=rng, dtype=torch.float64))
            if layer.bias is not None:
                layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    for _ in range(200_000):
        loss = nn.functional.softplus(-y * network(x)[:, 0]).mean()
        if float(loss.detach()) < stop:
            return network
        grads = torch.autograd.grad(loss.log(), list(network.parameters()))
        step = min(0.5, 0.2 / float(sum(g.square().sum() for g in grads)))
        with torch.no_grad():
            for p, g in zip(network.parameters(), grads, strict=True):
                p -= step * g
    raise SystemExit(f"The toy network did not reach loss {stop:g}.")


def at_truth(layers: list[nn.Linear], x: Tensor, y: Tensor, alpha: float) -> float:
    """The loop's residual at the training points, with the multipliers that serve it best (the judge's knowledge)."""
    theta = theta_of(layers)

    def loss(multipliers: Tensor) -> Tensor:
        return residual(x, multipliers * y, theta, alpha)

    # The loss is quadratic in the multipliers: two derivatives fix it.
    zero = torch.zeros(len(x), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(zero), zero)
    G = torch.autograd.functional.hessian(loss, zero.detach()) / 2
    best = nonnegative_multipliers(G, -slope / 2)
    return math.sqrt(max(float(loss(best)), 0.0) / squared_norm(theta))


def run(seed: int, options: argparse.Namespace) -> tuple[dict[str, Any], nn.Sequential, Tensor, Tensor, Tensor]:
    streams = Streams(fl.generator(seed))
    x, y = circle(options.n, streams)
    network = trained(x, y, [options.width] * (options.depth - 1), streams)
    layers = [m for m in network if isinstance(m, nn.Linear)]
    cpu = time.process_time()
    found, _, reached, note = solve_kkt(
        layers, streams=streams, low=None, high=None, m=options.m, lr=options.lr, lambda_lr=options.lambda_lr,
        sigma_x=options.sigma, alpha=options.alpha, lambda_min=options.lambda_min, epochs=options.epochs)
    distance = torch.cdist(found, x)                                # (m, n)
    row = {"seed": seed, "depth": options.depth, "n": options.n, "m": options.m, "residual": reached, "note": note,
           "residual_at_truth": at_truth(layers, x, y, options.alpha), "alpha": options.alpha, "width": options.width,
           "residual_at_truth_unsmoothed": at_truth(layers, x, y, 1e6), "epochs": options.epochs,
           "candidates_near": int((distance.amin(1) < NEAR).sum()),
           "points_found": int((distance.amin(0) < NEAR).sum()),
           "by_chance": round(options.n * NEAR / math.pi, 3), "cpu_seconds": round(time.process_time() - cpu, 1),
           "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **folds_row(layers, x, NEAR)}
    return row, network, x, y, found


def picture(network: nn.Sequential, x: Tensor, y: Tensor, found: Tensor, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    figure = Figure(figsize=(9.2, 4.9), layout="constrained")
    FigureCanvasAgg(figure)
    both = figure.subplots(1, 2)
    side = torch.linspace(-1.5, 1.5, 301, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(side, side, indexing="xy"), 2)                # (301, 301, 2)
    with torch.no_grad():
        value = network(grid.reshape(-1, 2)).reshape(301, 301)
    for axes in both:
        axes.contour(side, side, value, levels=[0.0], colors="grey", linewidths=0.8, linestyles="dashed")
        for label, colour in ((1, "tab:blue"), (-1, "tab:red")):
            axes.scatter(*x[y == label].T.tolist(), s=90, facecolors="none", edgecolors=colour, linewidths=1.6,
                         label=f"training points, label {label:+d}", zorder=3)
        axes.set_aspect("equal")
        axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), xticks=[], yticks=[])
    inside = int((found.abs() <= 1.5).all(1).sum())
    both[0].scatter(*found.T.tolist(), s=14, c="black", marker="x", linewidths=0.8, label="candidates")
    both[0].set_title(f"The published loop: {len(found)} candidates, {inside} of them in the frame", fontsize=9)
    u, at = fold_lines([m for m in network if isinstance(m, nn.Linear)])
    along = torch.stack([-u[:, 1], u[:, 0]], 1)
    for a, b in zip(at[:, None] * u - 3 * along, at[:, None] * u + 3 * along, strict=True):
        both[1].plot([float(a[0]), float(b[0])], [float(a[1]), float(b[1])], c="tab:green", lw=0.6)
    met = meetings(u, at)
    both[1].scatter(*met.T.tolist(), s=26, c="black", marker="+", linewidths=1.0, label="three folds meet", zorder=4)
    both[1].set_title(f"The folds of the first layer: {len(u)} different lines", fontsize=9)
    for axes in both:
        axes.legend(loc="upper right", fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--folds-only", action="store_true", help="without the loop")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("-n", type=int, default=20)
    parser.add_argument("-m", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=15_000)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--lambda-lr", type=float, default=2e-2)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--alpha", type=float, default=50.0)
    parser.add_argument("--lambda-min", type=float, default=0.01)
    parser.add_argument("--drawn", type=int, default=1, help="seed of the picture")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "images" / "toy.png")
    options = parser.parse_args()
    if options.quick:
        options.epochs = min(options.epochs, 1000)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        if options.folds_only:
            streams = Streams(fl.generator(seed))
            x, y = circle(options.n, streams)
            network = trained(x, y, [options.width] * (options.depth - 1), streams)
            read = {"seed": seed, "depth": options.depth, "width": options.width, "n": options.n, "folds_only": True,
                    **folds_row([m for m in network if isinstance(m, nn.Linear)], x, NEAR)}
            with (HERE / "results" / "reconstruct_toy.jsonl").open("a") as out:
                out.write(json.dumps(read) + "\n")
            print(read, flush=True)
            continue
        row, network, x, y, found = run(seed, options)
        print(f"seed {seed}: {row['candidates_near']} of {options.m} candidates within {NEAR} of a training point (by "
              f"chance {row['by_chance']:.0%} of those on the circle), {row['points_found']} of {options.n} points "
              f"found, residual {row['residual']:.3g} (at the training points "
              f"{row['residual_at_truth']:.3g}), {row['cpu_seconds']} s CPU; {row['lines']} fold lines, "
              f"{row['lines_on_points']:.0%} within 0.01 of a training point (turned circles "
              f"{row['lines_on_turned']:.0%}), {row['meetings']} meetings of three, {row['meetings_right']} right, "
              f"random lines {row['meetings_random']}", flush=True)
        if not options.quick:
            with (HERE / "results" / "reconstruct_toy.jsonl").open("a") as out:
                out.write(json.dumps(row) + "\n")
            if seed == options.drawn:
                picture(network, x, y, found, options.picture)


if __name__ == "__main__":
    main()
