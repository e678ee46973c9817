"""Training rows from a basis of the span of x - mean, where no bias coordinate fixes sign and scale.

Explanations span that, and so do the weights of a first layer without biases. With the mean known it is appended to the
basis, and its coefficient is 1 for every raw training row. With the mean unknown the centred rows are unmixed; scale
comes from the box, and each image is given in both signs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foldline.randomness import Streams
from foldline.reconstruction.evidence import weigh
from foldline.reconstruction.features import Features
from foldline.reconstruction.peel import Peeled, peel
from foldline.reconstruction.snap import outside
from foldline.reconstruction.starts import live_pixels
from foldline.results import Progress

CONFIRMED = 0.5         # share of confirmed images from which on the mean is believed
AFFORDED = 128          # images at most for which all is unmixed again
MOVED = ("More images fit the box with the mean of those recovered than with the one given, so it took its place; "
         "adding the given one to a sample still gives raw pixels.")
MIRRORED = 0.05         # share of ink outside the box below which an image's mirror fits the box too


@dataclass(frozen=True, eq=False)
class Rows:
    rows: Tensor                # (m, d) in the network's coordinates
    weights: Tensor             # (m,)
    evidence: dict[str, Tensor]
    exact: int                  # an image in both signs is one
    n: int                      # training rows that the basis speaks of
    notes: list[str]


def rows_in(B: Tensor, mean: Tensor, known: bool, box: tuple[float, float] | None, features: Features, *,
            streams: Streams, rounds: int, progress: Progress) -> Rows:
    """B (r, d) orthonormal; mean (d,), `known` or a row of zeros; box of raw pixels."""
    low, high = box if box is not None else (0.0, 1.0)
    notes = []
    above = mean - low
    raw, gauge = with_mean(B, above, known)

    def unmixed(above: Tensor) -> Peeled:
        raw, gauge = with_mean(B, above, known)
        return peel(raw / (high - low), gauge, features, streams=streams, snapping=box is not None and known,
                    live=live_pixels(raw, above if known and box is not None else None), rounds=rounds,
                    progress=progress)

    found, moved = settled(unmixed, above, (high - low) * (box is not None and known))
    weights, evidence = weigh(found, None)
    images = torch.where(found.flat[:, None], found.images.clamp(0, 1), found.images)       # as from weights
    rows = images * (high - low) + low - mean if gauge is not None else images * (high - low)
    # Where nothing fixes the sign of a centred image, every guess is wrong for some kind of picture: both are given.
    free, seen = torch.ones(len(rows), dtype=torch.bool), True
    if known:
        seen = gauge is None or float(features(above[None]).norm()) > 1e-9 * float(above.norm())
        free = either_sign(found.images, above / (high - low)) & (not seen)
    if moved:
        notes.append(MOVED)
    if not known:
        notes.append("The mean is not known: rows are centred images scaled by their range, each in both signs.")
    elif bool(free.any()):
        notes.append(f"The mean has no edges, so it cannot fix the sign of {int(free.sum())} rows that would fit the "
                     f"box in either: those are given in both.")
    elif gauge is not None and seen:
        notes.append(f"{len(raw)} rows are counted because the mean is taken as the training set's own; if it is not, "
                     f"there is one less.")
    rows, weights = torch.cat([rows, -rows[free]]), torch.cat([weights, weights[free]])
    evidence = {name: torch.cat([value, value[free]]) for name, value in evidence.items()}
    return Rows(rows, weights, evidence, int(found.exact.sum()), len(raw) if seen else len(B), notes)


def unconfirmed(found: Rows) -> Rows:
    """What the box pins in a span that lacks directions is as sparse as an image, and may still be only a part of one.

    MNIST, n = 20, labels alone, three seeds: of 23 such images 15 are within NCC 0.99 of a training image.
    """
    exact = found.evidence["exact"]
    return replace(found, exact=0, evidence={**found.evidence, "exact": torch.zeros_like(exact), "pinned": exact})


def settled(unmixed: Callable[[Tensor], Peeled], above: Tensor, scale: float) -> tuple[Peeled, bool]:
    """(what was found, whether the mean had to move). above (d,): the mean as given; scale: of the box, 0 if unknown.

    Where the box confirms few images, the mean may be that of other digits. The mean of what was recovered is nearer to
    their own: with it everything is unmixed again, and kept if the box confirms more.
    """
    found = unmixed(above)
    varies = float(above.std()) > 1e-6 * float(above.abs().max().clamp(min=1e-300))
    few = float(found.exact.double().mean()) < CONFIRMED and float(found.flat.double().mean()) > 0.5
    if not (scale > 0 and varies and few and len(found.images) <= AFFORDED):
        return found, False
    again = unmixed(scale * found.images.clamp(0, 1).mean(0))
    better = int(again.exact.sum()) > int(found.exact.sum())
    return (again, True) if better else (found, False)


def either_sign(images: Tensor, mean: Tensor) -> Tensor:
    """(q,) bool: mirrored at the mean they would lie in the box as well."""
    return outside(2 * mean - images) < MIRRORED


def with_mean(B: Tensor, offset: Tensor, centred: bool) -> tuple[Tensor, Tensor | None]:
    """The basis of raw rows, and the gauge: the mean as one more row, whose coefficient is 1 in a training row."""
    if not centred or float(offset.norm()) < 1e-9:
        return B, None
    new = offset - (offset @ B.T) @ B
    if float(new.norm()) < 1e-3 * float(offset.norm()):             # the span holds the mean already: no gauge in it
        return B, None
    gauge = torch.zeros(len(B) + 1, dtype=B.dtype)
    gauge[-1] = 1.0
    return torch.cat([B, offset[None]]), gauge
