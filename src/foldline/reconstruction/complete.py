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

are read off without inverting anything again. MNIST, n = 100, seeds 0 to 2: 99, 99, 98 -> 100, 100, 99 images.
Cost: no queries.
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

ROUNDS = 2
DRAWS = 12              # starts a round
OUTSIDE = 0.05          # share of ink outside the box above which an open row is no image
SHARE = 0.1             # of a candidate that the other rows must leave unexplained
INACTIVE = 0.1          # of a column on units that the candidate leaves off


@dataclass(frozen=True, eq=False)
class InRows:
    """The first layer in coordinates of R. (The basis that it comes in is orthonormal, its pixels are not.)"""
    seeing: Tensor          # (h, r) times an image's coordinates: what its units see
    mixed: Tensor           # (h, r) times the inverse of the rows' coordinates: their columns


def complete(found: Peeled, pixels: Tensor, gauge: Tensor, C: Tensor, units: Neighbours, features: Features,
             live: Tensor, *, streams: Streams, progress: Progress) -> Peeled:
    """found with better images in the seats of open rows, or as it was.

    pixels (r, d): the basis that the layer C (h, r) and its units are given in, as raw pixels; gauge (r,) in it.
    live (d,) bool: pixels where a training row can have ink.
    """
    R, space, fixed = found.R, found.space, found.exact.clone()
    K = pixels @ R.T                                                # coordinates in the basis -> in R
    if not K.shape[0] == K.shape[1] == len(space.K) == len(found.images) or bool(fixed.all()):
        return found
    rows = found.images @ R.T                                       # (r, r)
    if not bool(astray(rows, fixed, R).any()):
        return found
    g, units = torch.linalg.solve(K, gauge), units.within(K)
    layer = InRows(torch.linalg.solve(K, C.T).T, C @ K)
    rng = streams("completing")
    grown = unmix_by_units(R, g, features, live, units, streams=streams, progress=progress)
    before = rows.clone()
    for done in range(ROUNDS):
        stray = astray(rows, fixed, R)
        if not bool(stray.any()):
            break
        progress("completing", {"done": float(done), "total": float(ROUNDS), "open": float(stray.sum())})
        last = rows.clone()
        drawn = around(units.differences @ space.K_inverse, space.z, rows @ space.K_inverse,
                       ~fixed if done == 0 else stray, units.weight(int(live.sum())), DRAWS, rng=rng)
        pool = images_of(drawn.float(), space, R, g)
        pool = pool if grown is None else torch.cat([pool, grown.coefficients])
        pool = pool[ncc(pool @ R, rows[fixed] @ R).amax(1) < SAME] if bool(fixed.any()) else pool
        if len(pool):
            seated(torch.cat([pool, snap(pool @ R, R, g, below=BELOW).coefficients]), rows, fixed, R, layer)
        if torch.equal(rows, last):
            break
        fixed |= (rows != last).any(1) & measure(rows, R).exact
    if torch.equal(rows, before):
        return found
    final = measure(rows, R)
    agreement = None if found.agreement is None else agreement_of(rows, space, R, g, streams)
    return replace(found, images=rows @ (R * live), exact=fixed, violation=final.violation, edge=final.edge,
                   independence=independence((rows @ space.K_inverse).float(), space.z), agreement=agreement)


def astray(rows: Tensor, fixed: Tensor, R: Tensor) -> Tensor:
    """(r,) bool: open rows that lie outside the box."""
    return ~fixed & (measure(rows, R).violation > OUTSIDE)


def seated(pool: Tensor, rows: Tensor, fixed: Tensor, R: Tensor, layer: InRows) -> None:
    """Put the best of pool (k, r) into the seat of each open row that is no image, where box and units bear it out."""
    inside = measure(pool, R).violation                             # (k,)
    for i in torch.nonzero(astray(rows, fixed, R)).flatten().tolist():
        Q, singular = torch.linalg.inv_ex(rows)
        if int(singular):
            return
        share = pool @ Q * rows.norm(dim=1) / pool.norm(dim=1, keepdim=True)            # (k, r)
        share = share.abs().masked_fill(fixed, -1.0)
        column = (layer.mixed @ Q[:, i]).square()                             # (h,)
        inactive = ((pool @ layer.seeing.T < 0) * column).sum(1) / column.sum().clamp(min=1e-300)
        others = torch.arange(len(rows)) != i
        fits = (share.argmax(1) == i) & (share[:, i] > SHARE) & (inactive < INACTIVE)
        fits &= (inside < OUTSIDE) & (inside < 0.5 * measure(rows[i:i + 1], R).violation)
        fits &= ncc(pool @ R, rows[others] @ R).amax(1) < SAME
        if bool(fits.any()):
            rows[i] = pool[int((share[:, i] * fits).argmax())]
