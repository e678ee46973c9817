"""Pictures of reconstructed training data: grids as in Figures 6 to 11 of paper 003, and quality as in its Figure 4."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foldline.images import pictures

COLUMNS = 20
GAP, SEAM = 2, 10               # pixels between tiles; between pairs of rows
PAPER = 255


def tiles(rows: Tensor, shape: Sequence[int], box: tuple[float, float] | None) -> Tensor:
    """(k, H, W, 3) bytes. box None: rows have no known range, so each is stretched to its own."""
    x = rows.detach().double()
    if box is None:
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    else:
        low, high = torch.full((len(x), 1), box[0]), torch.full((len(x), 1), box[1])
    levels = ((x - low) / (high - low).clamp(min=1e-300)).clamp(0, 1).nan_to_num(0.0)
    image = pictures((255 * levels).round().to(torch.uint8), shape)
    return image if image.shape[3] == 3 else image[..., :1].expand(-1, -1, -1, 3)


def grid(bands: Sequence[Sequence[Tensor]], path: Path, *, columns: int = COLUMNS) -> None:
    """A PNG of bands of rows; the tiles (k, H, W, 3) of a band stand above each other and break lines together."""
    lines: list[list[Tensor]] = []
    for band in bands:
        k = len(band[0])
        lines += [[row[i:i + columns] for row in band] for i in range(0, k, columns)]
    if not lines:
        return
    first = lines[0][0]
    height, width = int(first.shape[1]), int(first.shape[2])
    columns = max(len(line[0]) for line in lines)
    total = sum(len(line) * (height + GAP) for line in lines) + SEAM * (len(lines) - 1) + GAP
    page = torch.full((total, columns * (width + GAP) + GAP, 3), PAPER, dtype=torch.uint8)
    top = GAP
    for line in lines:
        for row in line:
            for j, tile in enumerate(row):
                left = GAP + j * (width + GAP)
                page[top:top + height, left:left + width] = tile
            top += height + GAP
        top += SEAM
    from PIL import Image
    picture = Image.fromarray(page.numpy())
    scale = 2 if height < 64 else 1
    picture.resize((scale * picture.width, scale * picture.height), Image.Resampling.NEAREST).save(path, optimize=True)


def quality(train: Tensor, unseen: Tensor, threshold: float, path: Path, *, margins: Tensor | None = None) -> None:
    """Figure 4: how well each training row was found, sorted, beside unseen rows; and against the network's output.

    train (n,), unseen (n',): NCC; margins (n,): the network's output at each training row, where it is known.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9.0 if margins is not None else 5.0, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Any = figure.add_subplot(1, 2 if margins is not None else 1, 1)
        for values, name, style in ((train, "training", "-"), (unseen, "unseen", "--")):
            share = (torch.arange(len(values)) + 1) / len(values)
            axes.plot(share.tolist(), values.sort(descending=True).values.tolist(), style, label=name)
        axes.axhline(threshold, color="0.5", linewidth=0.8, linestyle=":", label="1 % false positives")
        axes.set(xlabel="share of rows, best first", ylabel="NCC with its own reconstruction", ylim=(-0.02, 1.02))
        axes.legend(frameon=False)
        if margins is not None:
            axes = figure.add_subplot(1, 2, 2)
            axes.plot(margins.tolist(), train.tolist(), "o", markersize=4, alpha=0.7)
            axes.axhline(threshold, color="0.5", linewidth=0.8, linestyle=":")
            axes.set(xlabel="the network's output at the training row", ylim=(-0.02, 1.02))
        figure.savefig(path, dpi=130)
