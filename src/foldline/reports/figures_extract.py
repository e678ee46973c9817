"""One line through a network with its folds, as an SVG file: what `foldline extract --plot` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from foldline.networks.one_hidden import Network


def line_plot(t: Tensor, y: Tensor, folds: Tensor, path: Path, *, title: str = "one line through the network") -> None:
    """t (n,), y (n, k) as asked; folds (m,). Far ends are cut off where they would hide the folds."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib.figure import Figure
    lo, hi = (float(folds.min()), float(folds.max())) if len(folds) else (float(t.min()), float(t.max()))
    # The outermost folds of a random line are Cauchy: the middle nine tenths are worth looking at.
    if len(folds) > 8:
        ordered = folds.sort().values
        cut = max(1, len(folds) // 20)
        lo, hi = float(ordered[cut]), float(ordered[-1 - cut])
    pad = 0.08 * (hi - lo) + 1e-9
    near = (t >= lo - pad) & (t <= hi + pad)
    order = t[near].argsort()
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.subplots()
    for at in folds[(folds >= lo - pad) & (folds <= hi + pad)].tolist():
        axes.axvline(at, color="0.85", linewidth=0.8, zorder=0)
    for k in range(min(y.shape[1], 3)):
        axes.plot(t[near][order].numpy(), y[near][order, k].numpy(), marker=".", markersize=3, linewidth=1.0)
    axes.set_xlabel("position on the line")
    axes.set_ylabel("output")
    axes.set_title(f"{title}: {len(folds)} folds")
    figure.savefig(path, format="svg")


def summary(network: Network) -> str:
    W, P = network.W, network.P
    affine = "" if float(P.abs().max()) == 0 else ", with an affine term"
    return f"{W.shape[1]}-{len(W)}-{len(P)}{affine}"
