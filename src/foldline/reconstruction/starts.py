"""Unmixing from several starts, and which of them to believe.

Unmixing is a local search, and what it ends in depends on the draw and on what is done with dead pixels: those where no
training image has ink, which a known training mean shows as pixels at the lower end of the box. In the span they hold
noise alone. Left in, they tell the likelihood which directions are noise (MNIST, n = 200: 181 images above NCC 0.8
with them, 142 without); but where one direction carries nearly all the noise, scaling features to one length blows it
up until it drowns the images (50 digits from 61 explanations: 44 above NCC 0.9 with them, 50 without). Both are tried,
and the one whose components lie better inside the pixel box is kept, which needs no truth. Where many stay outside,
features as they are get a turn: scaled to one length, the edges of a mean that is not quite the training set's own
drown the images (50 digits and the mean of 200 others: 4 images above NCC 0.9 scaled, 45 as they are). Otherwise
further starts are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.randomness import Streams
from foldline.reconstruction.features import Features
from foldline.reconstruction.grow import grow
from foldline.reconstruction.snap import outside, scaled
from foldline.reconstruction.units import Neighbours
from foldline.reconstruction.unmix import TAILS, Whitened, anneal, fast_ica, loss_of, whiten
from foldline.results import Progress

AT_EDGE = 0.3           # share of pixels near the box's edge from which on a candidate is worth snapping
FEW = 0.2               # share of candidates at the box's edge below which the box says nothing about the rest
STARTS = 2              # draws at most for each treatment of dead pixels
SMALL = 32              # up to so many directions a start costs next to nothing
LARGE = 256             # more directions than that are unmixed once each way: a start takes minutes
GOOD = 0.1              # share of ink outside the box below which a component counts as arrived
ENOUGH = 0.9            # share of components that have arrived, from which on no further start is drawn
WITHIN = 0.995          # share of pixels that a stretched image leaves inside the box
TELLING = 100.0         # a dead pixel with so many times the usual power of dead pixels is not dead


@dataclass(frozen=True, eq=False)
class Unmixed:
    space: Whitened
    C: Tensor               # (q, q) float32: the components in the whitened space
    coefficients: Tensor    # (q, r) the same as images in the basis
    ink: Tensor             # (q,) share of ink outside the box, on live pixels


def unmix(R: Tensor, gauge: Tensor | None, features: Features, live: Tensor, *, streams: Streams,
          snapping: bool) -> Unmixed:
    """R (r, d) orthonormal; live (d,) bool: pixels where an image can have ink. The best of the starts."""
    masked = snapping and not bool(live.all())
    spaces = [whiten(features(R))]
    best = one_start(spaces[0], R, gauge, live, streams("ica"))
    if not snapping or float(at_edge(best.coefficients @ R).double().mean()) <= FEW:
        return likeliest(best, R, gauge, live, streams)             # the box cannot tell one start from another
    if masked and not arrived(best):
        spaces.append(whiten(features(R * live)))
        best = better(best, one_start(spaces[1], R, gauge, live, streams("ica without dead pixels")))
    if gauge is not None and not arrived(best):
        plain = one_start(whiten(features(R * live), equalise=False), R, gauge, live, streams("ica of plain features"))
        if better(best, plain) is plain:
            return plain                                            # not the draw was at fault but the scaling
    for draw in range(1, STARTS if len(R) <= LARGE else 1):
        for kind, space in enumerate(spaces):
            if arrived(best):
                return best
            best = better(best, one_start(space, R, gauge, live, streams(f"ica {kind} {draw}")))
    return best


def unmix_by_units(R: Tensor, gauge: Tensor | None, features: Features, live: Tensor, units: Neighbours, *,
                   streams: Streams, progress: Progress) -> Unmixed | None:
    """From the layer's units too, whose differences are given in R. None where one side misses part of the span."""
    space = whiten(features(R))
    if len(space.K) < len(R):
        return None
    M = grow(units.differences @ space.K_inverse, space.z, units.weight(int(live.sum())), rng=streams("growing"),
             progress=progress)
    if M is None:
        return None
    C = M.float()
    coefficients = images_of(C, space, R, gauge)
    return Unmixed(space, C, coefficients, outside(coefficients @ R[:, live]))


def one_start(space: Whitened, R: Tensor, gauge: Tensor | None, live: Tensor, rng: torch.Generator) -> Unmixed:
    C = anneal(fast_ica(space.z, rng=rng), space.z)
    coefficients = images_of(C, space, R, gauge)
    return Unmixed(space, C, coefficients, outside(coefficients @ R[:, live]))


def likeliest(best: Unmixed, R: Tensor, gauge: Tensor | None, live: Tensor, streams: Streams) -> Unmixed:
    """Small spans are unmixed again, and the likelihood decides: rounding alone can leave a start on a saddle."""
    for draw in range(1, STARTS + 1 if len(R) <= SMALL else 1):
        other = one_start(best.space, R, gauge, live, streams(f"ica by likelihood {draw}"))
        best = min(best, other, key=lambda one: loss_of(one.C, one.space.z, TAILS[-1])[0])
    return best


def arrived(unmixed: Unmixed) -> bool:
    return float((unmixed.ink < GOOD).double().mean()) >= ENOUGH


def better(a: Unmixed, b: Unmixed) -> Unmixed:
    return a if float(a.ink.mean()) <= float(b.ink.mean()) else b


def images_of(C: Tensor, space: Whitened, R: Tensor, gauge: Tensor | None) -> Tensor:
    """Coefficients (q, r) in R of the components, scaled to images."""
    c = C.double() @ space.K
    if gauge is None:
        return scaled(c, R, None)
    mean = unseen_mean(space, gauge)
    if mean is not None:
        return stretched(c - (c @ gauge)[:, None] * mean, mean, R)
    # A component that hardly carries the constant cannot be scaled by it: bring its brightest pixel to 1 instead.
    share = (c @ gauge).abs() / (c.norm(dim=1) * gauge.norm()).clamp(min=1e-300)
    weak = share < 1e-4
    out = scaled(c, R, gauge)
    if bool(weak.any()):
        out[weak] = scaled(c[weak], R, None)
    return out


def unseen_mean(space: Whitened, gauge: Tensor) -> Tensor | None:
    """The coefficients of the mean where no feature sees it (edges of a mean that is the same everywhere), else None.

    Components then come without their share of it, so the gauge can fix neither their scale nor their sign.
    """
    rows = torch.linalg.qr(space.K.T)[0]                            # (r, q)
    rest = gauge - rows @ (rows.T @ gauge)
    carried = float(rest @ gauge)
    return rest / carried if carried > 1e-6 * float(gauge @ gauge) else None


def stretched(y: Tensor, mean: Tensor, R: Tensor) -> Tensor:
    """mean + t y, with the t of the sign that leaves room for more contrast, as far as the box goes."""
    Y, m = y @ R, (mean @ R).clamp(1e-3, 1 - 1e-3)
    room = [torch.quantile(torch.where(way > 0, way / (1 - m), -way / m), WITHIN, dim=1) for way in (Y, -Y)]
    t = torch.where(room[0] <= room[1], 1 / room[0].clamp(min=1e-300), -1 / room[1].clamp(min=1e-300))
    return mean + t[:, None] * y


def at_edge(X: Tensor) -> Tensor:
    """(q,) natural pictures hardly touch the box: then snapping has nothing to hold on to."""
    share = ((X.abs() < 0.1) | ((X - 1).abs() < 0.1)).double().mean(1)
    return share > AT_EDGE


def live_pixels(raw: Tensor, mean: Tensor | None) -> Tensor:
    """(d,) bool: where a training row can have ink. mean (d,): above the box's lower end, None where it is not known.

    raw (r, d): the span. A mean of other data may be zero where a training row has ink: its columns there stand out.
    """
    d = raw.shape[1]
    if mean is None or not bool((mean > 1e-9).any()):
        return torch.ones(d, dtype=torch.bool)
    live = mean > 1e-9
    power = raw.square().sum(0)
    if not bool(live.all()):
        live = live | ((power > TELLING * power[~live].median()) & (power > 1e-3 * power[live].median()))
    return live
