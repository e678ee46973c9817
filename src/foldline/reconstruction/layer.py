"""Training rows from a basis of the span of [x - mean, 1], with the layer itself and the network behind it at hand.

Spans of up to LARGE directions are unmixed by the images' features, and where the box pins few of the images the units
have their say (two_sided.py). What that cannot do, and larger spans from the beginning, is grown from images and units
together (grow.py). The network judges: what grew is believed where each image's column is near the signal that the
network sends back from it, and left alone where it is not (small starts, a start that never decayed).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foldline.randomness import Streams
from foldline.reconstruction.basis import MOVED, Rows, settled
from foldline.reconstruction.complete import complete
from foldline.reconstruction.evidence import inactive_share, untied, weigh
from foldline.reconstruction.features import Features
from foldline.reconstruction.peel import Peeled, peel
from foldline.reconstruction.starts import FEW, LARGE, live_pixels
from foldline.reconstruction.two_sided import Signal, TwoSided, fit_of, unmix_both
from foldline.reconstruction.units import Neighbours, alive, neighbours_in
from foldline.results import Progress

BELIEVED = 0.15         # median distance of columns from their signals: 0.02 to 0.07 where it grew right, else 0.25 on


@dataclass(frozen=True, eq=False)
class Layer:
    B: Tensor           # (r, d + 1) orthonormal basis of its span
    C: Tensor           # (h', r) the layer in it, but for dead units: nothing was left in those, and nothing is sent
    pixels: Tensor      # (r, d) the basis as raw pixels in units of the box
    signal: Signal | None   # what the network sends back to it, if it can be asked


@dataclass(frozen=True, eq=False)
class Seen:
    found: Peeled
    M: Tensor | None            # (r, r) images in B where the units moved them
    residual: Tensor | None     # (r,) distance of each column from its signal; None where the units had no say


def rows_with_bias(B: Tensor, A: Tensor, offset: Tensor, centred: bool, box: tuple[float, float] | None,
                   features: Features, *, signal: Signal, streams: Streams, rounds: int, progress: Progress) -> Rows:
    """Training rows from a basis B (r, d + 1) of the span of [x - mean, 1]; A (h, d + 1) the layer itself."""
    low, high = box if box is not None else (0.0, 1.0)
    gauge = B[:, -1]
    snapping = box is not None and (centred or float(B[:, :-1].norm()) > 0)
    notes = []

    def pixels(above: Tensor) -> Tensor:
        # Raw pixels, the mean put back through the bias coordinate, in units of the box.
        return (B[:, :-1] + gauge[:, None] * above) / (high - low)

    def alight(above: Tensor) -> Tensor:
        return live_pixels(pixels(above), above if centred and box is not None else None)

    def unmixed(above: Tensor, units: Neighbours | None = None) -> Peeled:
        return peel(pixels(above), gauge, features, streams=streams, snapping=snapping, units=units, live=alight(above),
                    rounds=rounds, progress=progress)

    if not centred and box is not None:
        notes.append("No mean was given: inputs are taken as raw pixels in the box; if they were centred, pass mean=.")
    living = alive(A @ B.T)
    layer = Layer(B, A[living] @ B.T, pixels(offset - low), answering(signal, living, B, notes))
    above = offset - low
    units = neighbours_in(layer.C) if layer.signal else None
    first = unmixed(above, units) if units and len(B) > LARGE else None
    seen = by_units(first, layer) if first else None
    if seen is None:
        if first and not grew(first):                               # so features alone have unmixed it
            found, moved = first, False
        else:
            found, moved = settled(unmixed, above, (high - low) * (box is not None and centred))
        seen = Seen(found, None, None) if moved else by_features(found, layer)
        if units and len(B) <= LARGE and not moved and seen.residual is None and not pinned(found):
            seen = by_units(unmixed(above, units), layer) or seen
        if units and pinned(found) and not moved and len(B) <= LARGE:
            seen = replace(seen, found=complete(found, layer.pixels, gauge, layer.C, units, features, alight(above),
                                                streams=streams, progress=progress))
        notes += [MOVED] * moved
    found = seen.found
    progress("weighing", {"candidates": float(len(found.images))})
    rows = found.images * (high - low) + low - offset                # network coordinates
    if seen.M is not None:
        rows = torch.where(found.exact[:, None], rows, seen.M @ B[:, :-1])
    if seen.residual is not None:
        notes.append(f"The units bear the images out: what each left in them is within "
                     f"{float(seen.residual.median()):.1%} of the signal the network sends back from it (median).")
    rows, inactive = untied(rows, inactive_share(rows, A), found.exact)
    weights, evidence = weigh(found, inactive, seen.residual)
    # The box is convex and holds every training row: its nearest point is nearer to whichever of them this is. Natural
    # pictures hardly reach its edge, and a wrong contrast would be cut.
    rows = torch.where(found.flat[:, None], (rows + offset).clamp(low, high) - offset, rows)
    return Rows(rows, weights, evidence, int(found.exact.sum()), len(B), notes)


def answering(signal: Signal, living: Tensor, B: Tensor, notes: list[str]) -> Signal | None:
    """The signal to living units (h,), or None with a note where the later layers want another shape than rows."""
    try:
        signal(B[:1, :-1])
    except RuntimeError as error:
        notes.append(f"The network could not be run on rows, so its units were not asked about the images: {error}")
        return None
    return lambda rows: signal(rows)[:, :, living]


def grew(found: Peeled) -> bool:
    """Whether it came from images and units: there is no second start to agree with then."""
    return found.agreement is None


def pinned(found: Peeled) -> bool:
    """Where the pixel box has pinned images already they are better off as they are."""
    return float(found.exact.double().mean()) > FEW


def by_features(found: Peeled, layer: Layer) -> Seen:
    both = both_sides(found, layer)
    return Seen(found, None, None) if both is None else Seen(found, both.M, both.residual)


def by_units(found: Peeled, layer: Layer) -> Seen | None:
    """What grew from images and units, or None where the network does not bear it out."""
    M = coordinates(found, layer)
    if M is None or layer.signal is None or not grew(found):
        return None
    both = both_sides(found, layer) if len(layer.B) <= LARGE else None      # among more it would lose weak images
    if both is not None:
        return Seen(found, both.M, both.residual)
    fit = fit_of(M, layer.C, layer.B, layer.signal)
    if fit is None:
        return None
    residual = fit.residual.abs().median(1).values
    return Seen(found, None, residual) if float(residual.median()) < BELIEVED else None


def both_sides(found: Peeled, layer: Layer) -> TwoSided | None:
    """Images moved to where the units agree with them, or None."""
    M = coordinates(found, layer)
    if M is None or layer.signal is None or pinned(found):
        return None
    K = layer.pixels @ found.R.T                                    # coordinates in B -> in R
    return unmix_both(M, layer.C, layer.B, found.space, K @ found.space.K_inverse, layer.signal)


def coordinates(found: Peeled, layer: Layer) -> Tensor | None:
    """Images in B (r, r); None unless there are as many as directions."""
    K = layer.pixels @ found.R.T
    if not K.shape[0] == K.shape[1] == len(found.space.K) == len(found.images):
        return None
    M: Tensor = torch.linalg.solve(K.T, (found.images @ found.R.T).T).T
    return M
