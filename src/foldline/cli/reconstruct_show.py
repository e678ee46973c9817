"""What `foldline reconstruct` shows and writes: evidence or scores on the terminal, pictures and an npz in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foldline.cli.common import say
from foldline.cli.reconstruct_known import Known
from foldline.errors import BadInput

if TYPE_CHECKING:
    from foldline.judge.reconstruction import ReconstructionScore
    from foldline.reconstruction.result import ReconstructionResult

ROWS = 15               # images listed on the terminal; all are in the npz
PICTURE, ARRAYS, QUALITY = "reconstruction.png", "reconstruction.npz", "quality.png"


def show_evidence(found: ReconstructionResult) -> None:
    from rich.console import Console
    from rich.table import Table
    if not len(found.samples):
        return
    leak = found.certificate
    # Directions bound the number from below; what every start finds under a start may hold a mixture or two.
    about = "{}" if leak.n_is_exact else "about {}" if found.status.code == "faint" else "{} or more"
    title = f"{len(found.samples)} candidates, best first"
    if found.estimated_n:
        title += f"; trained on {about.format(found.estimated_n)} rows"
    table = Table("#", "weight", *found.evidence, title=title, title_justify="left")
    for i in range(min(ROWS, len(found.samples))):
        cells = [number(float(v[i]), name) for name, v in found.evidence.items()]
        table.add_row(str(i + 1), f"{float(found.weights[i]):.3f}", *cells)
    if len(found.samples) > ROWS:
        table.add_row("...", *[""] * (1 + len(found.evidence)))
    Console().print(table)


def number(value: float, name: str) -> str:
    return ("yes" if value else "no") if name == "exact" else f"{value:.3g}"


def judged(found: ReconstructionResult, reference: Path, known: Known, module: nn.Module | None, out: Path, *,
           quiet: bool) -> ReconstructionScore | None:
    """Scores against the owner's rows, with pictures. Rows of unknown mean are compared with centred originals."""
    from foldline.judge.reconstruction import matched, score_reconstruction
    from foldline.reports.figures_reconstruct import quality
    from foldline.victims.owner import read_owner_file
    owner = read_owner_file(reference)
    if owner["x_train"].shape[1] != found.samples.shape[1]:
        raise BadInput(f"The target takes rows of {found.samples.shape[1]}, but {reference} holds rows of "
                       f"{owner['x_train'].shape[1]}: it belongs to another victim.")
    shift = owner["mean"].double() if known.mean is None else torch.zeros(())
    train, unseen = owner["x_train"].double() - shift, owner["x_unseen"].double() - shift
    samples = known.pixels(found.samples)
    if not len(samples):
        return None
    shape = found.image_shape
    score = score_reconstruction(samples, train, unseen, image_shape=shape)
    if not quiet:
        show_score(score, known.mean is not None)
    if shape is not None:
        pairs(samples, train, unseen, score, matched(samples, unseen), shape, known, out / PICTURE)
    quality(score.ncc, score.unseen_ncc, score.threshold, out / QUALITY,
            margins=None if module is None else margins(module, owner["x_train"].double() - owner["mean"].double()))
    say(f"Wrote {out / QUALITY}" + (f" and {out / PICTURE}" if shape is not None else ""), markup_safe=str(out))
    return score


def show_score(score: ReconstructionScore, mean_known: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    n, n_unseen = len(score.ncc), len(score.unseen_ncc)
    hits, false = int((score.ncc > score.threshold).sum()), int((score.unseen_ncc > score.threshold).sum())
    table = Table("one to one", f"of {n} training rows", f"of {n_unseen} unseen rows",
                  title="Scored against the owner's file" + ("" if mean_known else " (mean unknown: centred rows)"),
                  title_justify="left")
    low, high = score.interval
    table.add_row(f"recovered at 1 % false positives (NCC > {score.threshold:.3f})",
                  f"{hits} ({score.recovered:.0%}, 95 % interval {low:.0%} to {high:.0%})", str(false))
    for level in score.above:
        table.add_row(f"NCC > {level}", str(score.above[level]), str(score.unseen_above[level]))
    table.add_row("median NCC", f"{float(score.ncc.median()):.3f}", f"{float(score.unseen_ncc.median()):.3f}")
    if bool(score.ssim.isfinite().all()):
        table.add_row("SSIM > 0.4 after the published voting", str(int((score.ssim > 0.4).sum())),
                      str(int((score.unseen_ssim > 0.4).sum())))
    for name, share in score.nulls.items():
        table.add_row(f"null: {name}, at the same threshold", f"{share:.0%}", "")
    Console().print(table)


def pairs(samples: Tensor, train: Tensor, unseen: Tensor, score: ReconstructionScore, other: tuple[Tensor, Tensor],
          shape: tuple[int, ...], known: Known, path: Path) -> None:
    """Reconstruction over original, best first; the last band is the same for the unseen rows that come nearest."""
    from foldline.reports.figures_reconstruct import COLUMNS, grid, tiles

    def band(ncc: Tensor, match: Tensor, rows: Tensor, most: int | None) -> list[Tensor]:
        order = ncc.argsort(descending=True, stable=True)[:most]
        order = order[match[order] >= 0]
        return [tiles(samples[match[order]], shape, known.shown_in), tiles(rows[order], shape, known.shown_in)]

    grid([band(score.ncc, score.match, train, None), band(*other, unseen, COLUMNS)], path)


def margins(module: nn.Module, rows: Tensor) -> Tensor | None:
    """The network's output at the owner's rows (one output), for Figure 4."""
    from foldline.oracles.local import LocalSource
    table = LocalSource(module, "values").answer(rows).double()
    return table[:, 0] if table.shape[1] == 1 else None


def write(found: ReconstructionResult, known: Known, out: Path, *, pictures: bool) -> None:
    if not len(found.samples):
        return
    names: dict[str, Any] = {f"evidence_{k}": v.numpy() for k, v in found.evidence.items()}
    # The name must not be completed by numpy, and a killed write must not leave half a file under it.
    part = out / f".{ARRAYS}.part"
    with part.open("wb") as file:
        np.savez_compressed(file, samples=found.samples.numpy(), pixels=known.pixels(found.samples).numpy(),
                            weights=found.weights.numpy(), singular_values=found.singular_values.numpy(),
                            estimated_n=np.array(found.estimated_n), **names)
    part.replace(out / ARRAYS)
    wrote = str(out / ARRAYS)
    if pictures and found.image_shape is not None:
        from foldline.reports.figures_reconstruct import grid, tiles
        grid([[tiles(known.pixels(found.samples), found.image_shape, known.shown_in)]], out / PICTURE)
        wrote += f" and {out / PICTURE}"
    say(f"Wrote {wrote}", markup_safe=wrote)
