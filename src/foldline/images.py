"""Rows of numbers as pictures: the one place that knows how an image lies in a row.

Shapes are (H, W), (H, W, C) or, as torch flattens them, (C, H, W) with C = 1 or 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

COLOURS = (1, 3)


def pictures(rows: Tensor, image_shape: Sequence[int]) -> Tensor:
    """(n, d) -> (n, H, W, C)"""
    height, width, channels = size_of(image_shape)
    if channels_first(image_shape):
        return rows.reshape(len(rows), channels, height, width).permute(0, 2, 3, 1)
    return rows.reshape(len(rows), height, width, channels)


def rows_of(images: Tensor, image_shape: Sequence[int]) -> Tensor:
    """(n, H, W, C) -> (n, d), the inverse of pictures()"""
    return (images.permute(0, 3, 1, 2) if channels_first(image_shape) else images).flatten(1)


def size_of(image_shape: Sequence[int]) -> tuple[int, int, int]:
    """(H, W, C)"""
    if channels_first(image_shape):
        return image_shape[1], image_shape[2], image_shape[0]
    return image_shape[0], image_shape[1], image_shape[2] if len(image_shape) > 2 else 1


def channels_first(image_shape: Sequence[int]) -> bool:
    return len(image_shape) == 3 and image_shape[0] in COLOURS and image_shape[2] not in COLOURS


def guessed_shape(d: int, rows: Tensor | None = None) -> tuple[int, ...] | None:
    """(s, s), (s, s, 3) or (3, s, s) where d allows it; of the last two the one in which `rows` (n, d) are smoother."""
    for channels in COLOURS:
        side = math.isqrt(d // channels)
        if side >= 4 and side * side * channels == d:
            if channels == 1:
                return side, side
            ways = ((side, side, 3), (3, side, side))
            return ways[0] if rows is None else min(ways, key=lambda way: roughness(rows, way))
    return None


def roughness(rows: Tensor, image_shape: Sequence[int]) -> float:
    """Mean power of neighbours' differences, over the mean power of a pixel: 2 for noise, far less for pictures."""
    images = pictures(rows, image_shape)
    across, down = images.diff(dim=2).square().mean(), images.diff(dim=1).square().mean()
    return float((across + down) / 2 / images.square().mean().clamp(min=1e-300))


def low_frequencies(image_shape: Sequence[int], share: float) -> Tensor:
    """(p, d) orthonormal: the smoothest p = share d products of cosines, each colour by itself."""
    height, width, channels = size_of(image_shape)
    down, across = cosines(height), cosines(width)                  # (H, H), (W, W)
    frequency = (torch.arange(height)[:, None] / height).square() + (torch.arange(width) / width).square()
    kept = frequency.flatten().argsort(stable=True)[:max(1, round(share * height * width))]
    waves = torch.einsum("kh,kw->khw", down[kept // width], across[kept % width])        # (k, H, W)
    rows = torch.zeros(len(kept), channels, height, width, channels, dtype=torch.float64)
    for c in range(channels):
        rows[:, c, :, :, c] = waves
    return rows_of(rows.flatten(0, 1), image_shape)                 # (p, H, W, C) -> (p, d)


def cosines(n: int) -> Tensor:
    """(n, n) orthonormal rows, the smoothest first."""
    i = torch.arange(n, dtype=torch.float64)
    waves = torch.cos(math.pi * (i + 0.5) * i[:, None] / n)
    rows: Tensor = waves / waves.norm(dim=1, keepdim=True)
    return rows
