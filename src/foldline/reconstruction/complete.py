"""The last images: what the pixel box left open, searched for by images and units with the known ones held fixed.

Of 100 digits snapping pins 92 to 96. One or two of the others end as mixtures, mostly one of two similar digits, whose
difference is sparser than either. With the known rows fixed few numbers are left to find, and the objective of
grow.py, which sees the units too, finds them from one of several starts in half a second each: from the rows as they
are, from the open rows unmixed among themselves, and from those with some of the known ones added. What grew from
nothing is looked at as well.

Its loss does not tell which start is right (zeros of known rows are exact, and their logarithm drowns the rest). The
box and the network do, and they had no say in it. With p = sum_k s_k m_k in the present rows, p in the seat of open row
i leaves the column of i as it was but for its length, so

    share     |s_i|, rows at unit length: how much of p the other rows do not explain,
    inactive  share of column i on units that p leaves off: a training row leaves nothing there,
    violation share of p's ink outside the box

are read off without inverting anything again. MNIST, n = 100, six victims, three draws each: 1792 -> 1797
of 1800 images above NCC 0.9, and the last 3 are one image that its victim's span lacks. Cost: no queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foldline.randomness import Streams
from foldline.reconstruction.features import Features
from foldline.reconstruction.grow import around
from foldline.reconstruction.peel import SAME, Peeled, agreement_of, ncc
from foldline.reconstruction.snap import BELOW, measure, snap
from foldline.reconstruction.starts import images_of, unmix_by_units
from foldline.reconstruction.units import Neighbours
from foldline.reconstruction.unmix import independence
from foldline.results import Progress

MOSTLY = 0.9            # of the rows must be exact: where fewer are, the span is noisy, and so is what judges here
ROUNDS = 2
DRAWS = 12              # starts a round
SURE = 0.004            # share of ink outside the box up to which an exact row is taken as known
OUTSIDE = 0.05          # above this an open row is no image
SHARE = 0.1             # of a candidate that the other rows must leave unexplained
INACTIVE = 0.1          # of a column on units that the candidate leaves off


@dataclass(frozen=True, eq=False)
class InRows:
    """The first layer in coordinates of R. (The basis that it comes in is orthonormal, its pixels are not.)"""
    seeing: Tensor          # (h, r) times an image's coordinates: what its units see
    mixed: Tensor           # (h, r) times the inverse of the rows' coordinates: their columns


def complete(found: Peeled, pixels: Tensor, gauge: Tensor, C: Tensor, units: Neighbours, features: Features,
             live: Tensor, *, streams: Streams, progress: Progress) -> Peeled:
    """found with better images in the seats of rows that are not known for sure, or as it was.

    pixels (r, d): the basis that the layer C (h, r) and its units are given in, as raw pixels; gauge (r,) in it.
    live (d,) bool: pixels where a training row can have ink.
    """
    R, space = found.R, found.space
    K = pixels @ R.T                                                # coordinates in the basis -> in R
    if not K.shape[0] == K.shape[1] == len(space.K) == len(found.images):
        return found
    rows = found.images @ R.T                                       # (r, r)
    before, sure = rows.clone(), found.exact & (found.violation < SURE)
    if float(found.exact.double().mean()) < MOSTLY or not bool(astray(rows, sure, R).any()):
        return found
    g, units = torch.linalg.solve(K, gauge), units.within(K)
    layer = InRows(torch.linalg.solve(K, C.T).T, C @ K)
    rng = streams("completing")
    grown = unmix_by_units(R, g, features, live, units, streams=streams, progress=progress)
    for done in range(ROUNDS):
        stray, last = astray(rows, sure, R), rows.clone()
        if not bool(stray.any()):
            break
        progress("completing", {"done": float(done), "total": float(ROUNDS), "open": float(stray.sum())})
        drawn = around(units.differences @ space.K_inverse, space.z, rows @ space.K_inverse, ~sure,
                       units.weight(int(live.sum())), DRAWS, rng=rng)
        pool = images_of(drawn.float(), space, R, g)
        pool = pool if grown is None else torch.cat([pool, grown.coefficients])
        pool = pool[ncc(pool @ R, rows[sure] @ R).amax(1) < SAME] if bool(sure.any()) else pool
        if len(pool):
            seated(torch.cat([pool, snap(pool @ R, R, g, below=BELOW).coefficients]), rows, sure, R, layer)
        moved = (rows != last).any(1)
        if not bool(moved.any()):
            break
        at = measure(rows, R)
        sure |= moved & at.exact & (at.violation < SURE)
    moved = (rows != before).any(1)
    if not bool(moved.any()):
        return found
    at = measure(rows, R)
    agreement = None if found.agreement is None else agreement_of(rows, space, R, g, streams)
    return replace(found, images=rows @ (R * live), exact=torch.where(moved, sure, found.exact),
                   violation=at.violation, edge=at.edge,
                   independence=independence((rows @ space.K_inverse).float(), space.z), agreement=agreement)


def astray(rows: Tensor, sure: Tensor, R: Tensor) -> Tensor:
    """(r,) bool: rows that the box has something against."""
    return ~sure & (measure(rows, R).violation > SURE)


def seated(pool: Tensor, rows: Tensor, sure: Tensor, R: Tensor, layer: InRows) -> None:
    """Put the best of pool (k, r) into the seat of each row astray, where box and units bear it out."""
    at = measure(pool, R)
    for i in torch.nonzero(astray(rows, sure, R)).flatten().tolist():
        Q, singular = torch.linalg.inv_ex(rows)
        if int(singular):
            return
        share = pool @ Q * rows.norm(dim=1) / pool.norm(dim=1, keepdim=True)            # (k, r)
        share = share.abs().masked_fill(sure, -1.0)
        column = (layer.mixed @ Q[:, i]).square()                   # (h,)
        inactive = ((pool @ layer.seeing.T < 0) * column).sum(1) / column.sum().clamp(min=1e-300)
        others = torch.arange(len(rows)) != i
        now = float(measure(rows[i:i + 1], R).violation)
        better = at.violation < min(OUTSIDE, 0.5 * now)
        if now < OUTSIDE:                                           # it may well be an image: more is asked of another
            better = at.exact & (at.violation < 0.25 * now)
        fits = better & (share.argmax(1) == i) & (share[:, i] > SHARE) & (inactive < INACTIVE)
        fits &= ncc(pool @ R, rows[others] @ R).amax(1) < SAME
        if bool(fits.any()):
            rows[i] = pool[int((share[:, i] * fits).argmax())]
