"""What pictures of a kind look like alone, learnt from public ones: a network that takes a mixture apart.

A candidate from a noisy span is mostly one training image with some of the others in it. Edges tell one picture from a
mixture only by how sparse they are; whoever has other pictures of the same kind can learn more. The separator sees

    x = p_k + sum_j c_j p_j + noise,      c of heavy tails, |c| up to 1.2, of 100 public images p

and answers p_k, all at mean 0 and deviation 1. How much of the error it takes away from held-out public mixtures is
its worth: 0.84 on MNIST, a fifth on CIFAR-10, where one small picture through another is a picture still.
by_public.py uses it, and only where it is worth something.

Needs no target and no query. 3,000 steps take some six minutes on two cores, once for a kind of picture:
save_separator keeps it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foldline.errors import BadFile, BadInput
from foldline.networks.files import load, read_extra, save
from foldline.networks.presets import build
from foldline.networks.unet import Unet
from foldline.randomness import Streams
from foldline.results import Progress, silent

STEPS, BATCH, RATE = 3000, 64, 4e-3
MIXED = 100             # images in a mixture
TAILS = 1.0             # of the coefficients: normal times the exponential of so many normals
MOST = 1.2              # length of the other images' coefficients, against 1
NOISE = 0.2             # at most, of a public pixel's deviation
FEWEST = 200            # public images: fewer are learnt by heart, and `worth` would show it
CHUNK = 256             # pictures in one pass
HELD_OUT = 0.1          # share of them that its worth is measured on


@dataclass(frozen=True, eq=False)
class Separator:
    network: nn.Module          # rows (n, d) at mean 0 and deviation 1 -> the same
    image_shape: tuple[int, ...]
    mean: Tensor                # (d,) of the public images
    worth: float                # share of the squared error that it takes away from mixtures of held-out images
    drawn: bool = False         # taught by pen strokes (strokes.py)
    unasked: bool = False       # nobody said that the rows are of this kind: they have to look so


def train_separator(public: Tensor, image_shape: tuple[int, ...], *, rng: torch.Generator, steps: int = STEPS,
                    widths: tuple[int, int, int] = (32, 64, 96), drawn: bool = False,
                    progress: Progress = silent) -> Separator:
    """public (n, d): raw pixels of other pictures of the kind that the training images are of; drawn: by strokes.py."""
    d = math.prod(image_shape)
    if public.ndim != 2 or public.shape[1] != d:
        raise BadInput(f"Public images must be rows of {d} numbers for the shape {tuple(image_shape)}, not "
                       f"{tuple(public.shape)}.")
    if len(public) < FEWEST:
        raise BadInput(f"{len(public)} public images do not tell what such pictures look like; give at least {FEWEST}.")
    if not bool(public.isfinite().all()) or float(public.std()) == 0:
        raise BadInput("Public images must be finite and not all alike.")
    streams = Streams(rng)
    order = torch.randperm(len(public), generator=streams("held out"))
    rows, held = public.float()[order].split([len(public) - round(HELD_OUT * len(public)),
                                              round(HELD_OUT * len(public))])
    network = build("unet", input_shape=image_shape, outputs=d, rng=streams("start"), start="he", widths=widths)
    assert isinstance(network, Unet)
    network.silent()
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    noise, draws = NOISE * float(public.std()), streams("mixtures")
    for step in range(steps):
        x, y = mixtures(rows, BATCH, noise, draws)
        # A mixture that is nearly clean must be left so: errors count against what was there to mend.
        there = (x - y).square().mean(1) + 0.02
        loss = ((network(x) - y).square().mean(1) / there).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 20 == 0:
            progress("learning from public images", {"done": float(step), "total": float(steps),
                                                     "error": float(loss.detach())})
    network.eval().requires_grad_(False)
    return Separator(network, tuple(image_shape), public.double().mean(0),
                     worth_of(network, held, noise, streams("worth")), drawn)


def mixtures(rows: Tensor, count: int, noise: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(mixtures, what leads in each), (count, d) both, standardised."""
    p = rows[torch.randint(len(rows), (MIXED,), generator=rng)]     # (MIXED, d)
    c = torch.randn(count, MIXED, generator=rng) * torch.exp(TAILS * torch.randn(count, MIXED, generator=rng))
    c *= MOST * torch.rand(count, 1, generator=rng) / c.norm(dim=1, keepdim=True)
    leads = torch.randint(MIXED, (count,), generator=rng)
    c[torch.arange(count), leads] = 1.0
    size = noise * torch.rand(count, 1, generator=rng)
    x = c @ p + size * torch.randn(count, p.shape[1], generator=rng)
    return standardised(x), standardised(p[leads])


def standardised(rows: Tensor) -> Tensor:
    """Rows at mean 0 and deviation 1; constant ones at 0."""
    centred = rows - rows.mean(1, keepdim=True)
    out: Tensor = centred / centred.square().mean(1, keepdim=True).sqrt().clamp(min=1e-6)
    return out


def worth_of(network: nn.Module, held: Tensor, noise: float, rng: torch.Generator) -> float:
    """1 - (squared error after) / (squared error before), each mixture and answer at its best length."""
    before = after = 0.0
    with torch.no_grad():
        for _ in range(8):
            x, y = mixtures(held, BATCH, noise, rng)
            before += float((1 - F.cosine_similarity(x, y).square()).sum())
            after += float((1 - F.cosine_similarity(standardised(network(x)), y).square()).sum())
    return 1 - after / max(before, 1e-12)


def left_alone(separator: Separator, rows: Tensor) -> Tensor:
    """(m,) cosine of each row with what the separator makes of it: near 1 where it sees one picture alone."""
    x = standardised(rows.float())
    with torch.no_grad():
        parts = [standardised(separator.network(part)) for part in x.split(CHUNK)]
    return F.cosine_similarity(x, torch.cat(parts), dim=1).double() if parts else x.new_zeros(0).double()


def check_separator(separator: Separator | None, image_shape: tuple[int, ...] | None) -> None:
    """A sentence where it is for other pictures than these."""
    if separator is None:
        return
    if not isinstance(separator, Separator):
        raise BadInput(f"public= takes what train_separator returns, not {type(separator).__name__}.")
    if image_shape is None or tuple(image_shape) != separator.image_shape:
        raise BadInput(f"The public images are of shape {separator.image_shape}, but the rows are "
                       f"{'no images' if image_shape is None else tuple(image_shape)}.")


def save_separator(separator: Separator, path: str | Path) -> None:
    save(separator.network, path, extra={"separator": {"mean": separator.mean.tolist(), "worth": separator.worth,
                                                       "drawn": separator.drawn}})


def load_separator(path: str | Path) -> Separator:
    network, kept = load(path), read_extra(path).get("separator")
    shape = getattr(network, "input_shape", None)
    if not isinstance(kept, dict) or shape is None:
        raise BadFile(f"{path} is a network, but not a separator that foldline kept.")
    mean = torch.tensor(kept["mean"], dtype=torch.float64)
    return Separator(network.requires_grad_(False), tuple(shape), mean, float(kept["worth"]),
                     bool(kept.get("drawn", False)))
