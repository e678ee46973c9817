"""What makes an image an image: filters under which a single image is sparse and a mixture is not.

Unmixing looks for combinations of basis images whose features are mostly near zero with rare large values. Edges do
that for pictures; for other data pass your own `features` (a function of (r, d) rows that is linear in each row and
returns (r, N) numbers, N well above r; zeros should be meaningful).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foldline.images import pictures

Features = Callable[[Tensor], Tensor]


def features_for(image_shape: tuple[int, ...] | None) -> Features:
    return plain_features if image_shape is None else lambda rows: edge_features(rows, image_shape)


def plain_features(rows: Tensor) -> Tensor:
    """Tabular rows: the columns themselves, each at unit power."""
    power = rows.square().mean(0).sqrt()
    return rows[:, power > 1e-9 * power.max()] / power[power > 1e-9 * power.max()]


def edge_features(rows: Tensor, image_shape: tuple[int, ...]) -> Tensor:
    """First and second differences along both axes and both diagonals, and those of colour opponents.

    Each kind is scaled to unit power over the basis, so that none drowns the others. More kinds are more samples: the
    two plain differences fail at 200 images, these seven (nine in colour) do not.
    """
    x = pictures(rows, image_shape)
    dx, dy = x[:, :, 1:] - x[:, :, :-1], x[:, 1:] - x[:, :-1]
    kinds = [dx, dy, x[:, 1:, 1:] - x[:, :-1, :-1], x[:, 1:, :-1] - x[:, :-1, 1:],
             dx[:, :, 1:] - dx[:, :, :-1], dy[:, 1:] - dy[:, :-1], dx[:, 1:] - dx[:, :-1]]
    if x.shape[3] == 3:
        opponent = torch.stack([x[..., 0] - x[..., 1], x[..., 1] - x[..., 2]], -1)
        kinds += [opponent[:, :, 1:] - opponent[:, :, :-1], opponent[:, 1:] - opponent[:, :-1]]
    flat = [k.reshape(len(rows), -1) for k in kinds]
    return torch.cat([k / k.square().mean().sqrt().clamp(min=1e-30) for k in flat], 1)
