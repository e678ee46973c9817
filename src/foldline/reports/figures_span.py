"""Pictures of span recovery: the gallery of obfuscated inputs (Figure 3 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from foldline.images import pictures


def gallery(before: Tensor, after: Tensor, captions: Sequence[tuple[str, str]], shape: Sequence[int],
            path: Path) -> None:
    """Originals above, obfuscated below, each with its prediction and confidence; PNG or SVG by the path's ending.

    Noise leaves the box, so each obfuscated picture is stretched to its own range, as the paper's figure is.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    n = len(before)
    figure = Figure(figsize=(1.35 * n, 3.3))
    FigureCanvasAgg(figure)
    for j in range(n):
        for row, (image, text) in enumerate(((before[j], captions[j][0]), (after[j], captions[j][1]))):
            axes = figure.add_subplot(2, n, 1 + row * n + j)
            pixels = pictures(image[None], shape)[0].numpy()
            if pixels.shape[2] == 3:
                pixels = (pixels - pixels.min()) / max(float(pixels.max() - pixels.min()), 1e-300)
            axes.imshow(pixels.squeeze(), cmap="gray")
            axes.set_title(text, fontsize=8)
            axes.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
