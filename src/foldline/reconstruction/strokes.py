"""Pen strokes drawn by a program, and what a network learnt of them: a prior of handwriting that needs no data.

Each picture has one to three strokes of a pen: four pieces of constant curvature, corners between some of them, later
strokes crossing an earlier one; scaled into the middle of the picture as handwriting data are, then inked with a width
and a softness of the edge. No digit is stored here and none was used; the ranges were set by eye beside MNIST's
test images, and by how much of their ink is grey.

A separator (separator.py) that learnt from such strokes alone takes three quarters of the error away from mixtures of
MNIST digits, 0.84 where digits themselves taught it. It comes with foldline for pictures of 28 x 28
(tools/learn_strokes.py made it), and is used unasked where the rows look drawn: where it leaves the best of them as
they are. On other pictures it would do harm (cut-out photographs: 98 -> 82 % recovered).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from foldline.errors import BadInput
from foldline.images import size_of
from foldline.networks.unet import Unet
from foldline.reconstruction.separator import Separator, check_separator, left_alone, load_separator

FILE = Path(__file__).with_name("strokes.safetensors")
SIDES = (28, 28, 1)     # of the pictures that it was taught
CHUNK = 500             # pictures drawn at a time
STROKES = 3             # at most
PIECES = 4              # of constant curvature in a stroke
POINTS = 48             # along a stroke: closer than half a pixel, mostly
INNER = 20 / 28         # share of the picture that the strokes fill
BEST = 0.75             # quantile of the candidates that is looked at: noise hides it in the others
DRAWN = 0.985           # cosine with what the separator makes of them. MNIST 0.998, with noise in its span 0.987;
                        # smooth blobs 0.975, shuffled columns of digits 0.977, cut-out photographs 0.95


def pen_strokes(n: int, image_shape: tuple[int, ...], *, rng: torch.Generator) -> Tensor:
    """(n, d) float32 pictures in [0, 1], of one channel."""
    H, W, channels = size_of(image_shape)
    if channels != 1:
        raise BadInput(f"Pen strokes are drawn in one channel; {tuple(image_shape)} has {channels}.")
    return torch.cat([inked(*paths(min(CHUNK, n - k), rng), H, W, rng) for k in range(0, n, CHUNK)])


def paths(n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(points (n, STROKES, POINTS, 2) in no particular unit, which strokes are there (n, STROKES))"""
    S, P = STROKES, POINTS
    turn = 1.5 * normal(n, S, PIECES, rng=rng) * (uniform(n, S, PIECES, rng=rng) < 0.75)
    steady = uniform(n, S, 1, rng=rng) < 0.4                        # one curvature throughout
    turn = torch.where(steady, turn[..., :1], turn)
    corner = 1.5 * normal(n, S, PIECES, rng=rng) * (uniform(n, S, PIECES, rng=rng) < 0.25)
    bend = (turn / (P // PIECES)).repeat_interleave(P // PIECES, 2)  # (n, S, P)
    bend[..., P // PIECES::P // PIECES] += corner[..., 1:]
    angle = 2 * math.pi * uniform(n, S, 1, rng=rng) + bend.cumsum(2)
    length = uniform(n, S, 1, 1, rng=rng, low=0.4, high=1.6)
    points = (length / P * torch.stack([angle.cos(), angle.sin()], 3)).cumsum(2)
    # A later stroke meets the first one, a random point of it near a random point of that.
    meets, pivot = (index(n, S, P, rng=rng) for _ in range(2))
    moved = points - points.gather(2, pivot) + points[:, :1].expand(n, S, P, 2).gather(2, meets)
    moved = moved + 0.15 * normal(n, S, 1, 2, rng=rng)
    points = torch.cat([points[:, :1], moved[:, 1:]], 1)
    points = points * torch.cat([uniform(n, 1, 1, 1, rng=rng, low=0.5, high=1.1), torch.ones(n, 1, 1, 1)], 3)
    count = 1 + (uniform(n, rng=rng) < 0.45).long() + (uniform(n, rng=rng) < 0.2).long()
    return points, torch.arange(S) < count[:, None]


def inked(points: Tensor, there: Tensor, H: int, W: int, rng: torch.Generator) -> Tensor:
    """(n, H W): strokes scaled to the middle of the picture, their centre of mass at its centre, and drawn."""
    n, side = len(points), min(H, W)
    radius = uniform(n, 1, 1, rng=rng, low=0.8, high=1.8) * side / 28
    softness = uniform(n, 1, 1, rng=rng, low=0.5, high=2.0) * side / 28
    absent = ~there[:, :, None, None]
    low = points.masked_fill(absent, math.inf).amin((1, 2))         # (n, 2)
    size = (points.masked_fill(absent, -math.inf).amax((1, 2)) - low).amax(1)
    room = INNER * side - 1.6 * radius[:, 0, 0]
    points = points * (room / size)[:, None, None, None]
    centre = (points * ~absent).sum((1, 2)) / (POINTS * there.sum(1))[:, None]
    points = points - centre[:, None, None] + torch.tensor([(W - 1) / 2, (H - 1) / 2])
    points = points.masked_fill(absent, 1e3).flatten(1, 2)          # (n, S P, 2)
    across = (points[:, :, 0, None] - torch.arange(W)).square()     # (n, S P, W)
    down = (points[:, :, 1, None] - torch.arange(H)).square()
    nearest = torch.full((n, H, W), math.inf)
    for k in range(points.shape[1]):
        torch.minimum(nearest, down[:, k, :, None] + across[:, k, None, :], out=nearest)
    return ((radius - nearest.sqrt()) / softness + 0.5).clamp(0, 1).flatten(1)


def uniform(*shape: int, rng: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=rng)


def normal(*shape: int, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng)


def index(n: int, S: int, P: int, *, rng: torch.Generator) -> Tensor:
    """One of P points for each stroke, ready to gather by: (n, S, 1, 2)"""
    return torch.randint(P, (n, S, 1, 1), generator=rng).expand(n, S, 1, 2)


def prior_for(public: Separator | Literal[False] | None, image_shape: tuple[int, ...] | None) -> Separator | None:
    """What was given; where nothing was, pen strokes for pictures of the size they are known at. False: nothing."""
    if public is None:
        there = known_strokes(image_shape)
        return None if there is None else replace(there, unasked=True)
    if public is False:
        return None
    check_separator(public, image_shape)
    return public


def known_strokes(image_shape: tuple[int, ...] | None) -> Separator | None:
    """The separator that comes with foldline, or None for other pictures than it was taught."""
    if image_shape is None or size_of(image_shape) != SIDES:
        return None
    kept = load_separator(FILE)
    network = kept.network.float()
    assert isinstance(network, Unet)
    network.image_shape = tuple(image_shape)
    return replace(kept, network=network, image_shape=tuple(image_shape))


def look_drawn(rows: Tensor, separator: Separator) -> bool:
    """Whether the separator leaves the best of rows (m, d) nearly as they are."""
    return len(rows) > 0 and float(left_alone(separator, rows).quantile(BEST)) > DRAWN
