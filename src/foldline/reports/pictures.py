"""Small PNGs out of rows of numbers."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import torch
from torch import Tensor

from foldline.images import pictures

Shape = Sequence[int]


def png(row: Tensor, shape: Shape, *, box: tuple[float, float] = (0.0, 1.0)) -> str:
    """base64 of a PNG of one sample; shape: see images.py. Values outside the box are cut."""
    from PIL import Image
    low, high = box
    levels = ((row.detach().double() - low) / (high - low)).clamp(0, 1).nan_to_num(0.0)
    pixels = pictures((255 * levels).round().to(torch.uint8)[None], shape)[0].numpy()
    if pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
