"""A small U-Net from pictures to pictures: rows (n, d) in, rows (n, d) out.

Two halvings and back, residual blocks, and the input added at the end, so that with its last layer at zero (`silent`)
it starts as the identity. Half a million parameters at the default widths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foldline.errors import BadInput
from foldline.images import pictures, rows_of, size_of

HALVED = 4              # sides are padded to a multiple of this


class Unet(nn.Module):
    def __init__(self, image_shape: Sequence[int], widths: Sequence[int] = (32, 64, 96)) -> None:
        super().__init__()
        if len(image_shape) not in (2, 3) or len(widths) != 3 or min(widths) < 1:
            raise BadInput(f"A U-Net needs images, (H, W) or (H, W, C), and three positive widths, not "
                           f"{tuple(image_shape)} and {tuple(widths)}.")
        self.image_shape = tuple(image_shape)
        channels = size_of(image_shape)[2]
        a, b, c = widths
        self.enter = nn.Sequential(same(channels, a), nn.ReLU(), same(a, a), nn.ReLU())
        self.down1 = nn.Sequential(halving(a, b), nn.ReLU(), same(b, b), nn.ReLU())
        self.down2 = nn.Sequential(halving(b, c), nn.ReLU())
        self.middle1, self.middle2 = same(c, c), same(c, c)
        self.up1, self.right1 = nn.Conv2d(c, 4 * b, 1), same(b, b)
        self.up2, self.right2 = nn.Conv2d(b, 4 * a, 1), same(a, a)
        self.leave = same(a, channels)

    def silent(self) -> None:
        """The identity."""
        nn.init.zeros_(self.leave.weight)
        if self.leave.bias is not None:
            nn.init.zeros_(self.leave.bias)

    def forward(self, rows: Tensor) -> Tensor:
        x = pictures(rows.flatten(1), self.image_shape).permute(0, 3, 1, 2)     # (n, C, H, W)
        H, W = x.shape[2:]
        x = F.pad(x, (0, -W % HALVED, 0, -H % HALVED)).contiguous(memory_format=torch.channels_last)
        fine = self.enter(x)
        middle = self.down1(fine)
        coarse = self.down2(middle)
        coarse = coarse + F.relu(self.middle1(coarse))
        coarse = coarse + F.relu(self.middle2(coarse))
        middle = middle + F.relu(F.pixel_shuffle(self.up1(coarse), 2))
        middle = middle + F.relu(self.right1(middle))
        fine = fine + F.relu(F.pixel_shuffle(self.up2(middle), 2))
        fine = fine + F.relu(self.right2(fine))
        out = (x + self.leave(fine))[:, :, :H, :W]
        return rows_of(out.permute(0, 2, 3, 1), self.image_shape)


def same(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1)


def halving(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 4, stride=2, padding=1)


def unet(shape: tuple[int, ...], outputs: int, widths: Sequence[int] = (32, 64, 96)) -> nn.Module:
    """From pictures to pictures: as many outputs as inputs."""
    if outputs != math.prod(shape):
        raise BadInput(f"A U-Net answers pictures: outputs must be {math.prod(shape)}, not {outputs}.")
    return Unet(shape, widths)
