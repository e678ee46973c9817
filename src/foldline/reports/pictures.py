"""Small PNGs out of rows of numbers."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = Sequence[int]


def png(row: Tensor, shape: Shape, *, box: tuple[float, float] = (0.0, 1.0)) -> str:
    """base64 of a PNG of one sample; shape is (H, W) or (H, W, C) with C = 1 or 3. Values outside the box are cut."""
    from PIL import Image
    low, high = box
    levels = ((row.detach().double() - low) / (high - low)).clamp(0, 1).nan_to_num(0.0)
    pixels = (255 * levels).round().to(torch.uint8).reshape(*shape).numpy()
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
