"""From a span to images: unmix, snap, keep what is exact, and move the rest around it, until nothing new comes.

Everything here is in units of the pixel box and knows neither network nor truth. What was snapped exactly is fixed
in the likelihood of the next round, so the other components are found in a smaller and cleaner problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.randomness import Streams
from foldline.reconstruction.features import Features
from foldline.reconstruction.snap import BELOW, NEAR, measure, needed, outside, snap
from foldline.reconstruction.starts import FEW, LARGE, at_edge, images_of, unmix, unmix_by_units
from foldline.reconstruction.units import Neighbours
from foldline.reconstruction.unmix import FIRST_ROUNDS, Whitened, anneal, fast_ica, independence, likelihood, sampled
from foldline.results import Progress, silent

ROUNDS = 10             # rounds of refitting and snapping at most
DRY = 3                 # rounds without a new exact image before it ends
MIRRORS = [sign * 0.1 * 1.15 ** i for i in range(22) for sign in (1, -1)]      # 0.1 to 1.9
CROWDED = 0.85          # share of live pixels that an exact image would need on the edge: no image has so many
SHARE = 0.02            # an image with less than this of any open row is a mixture of known ones
FREE = 0.01             # ink outside the box that counts as none
SAME = 0.95             # two images closer than this are one


@dataclass(frozen=True, eq=False)
class Peeled:
    images: Tensor          # (q, d) in units of the box
    exact: Tensor           # (q,) bool: pinned by its zeros
    violation: Tensor       # (q,)
    edge: Tensor            # (q,)
    independence: Tensor    # (q,)
    agreement: Tensor | None    # (q,) NCC with the nearest component of a second, independent start
    flat: Tensor            # (q,) bool: many pixels near the box's edge, so the box has a say
    rounds: int
    R: Tensor               # (r, d) orthonormal: the span that the images lie in
    space: Whitened         # of its features


def peel(raw: Tensor, gauge: Tensor | None, features: Features, *, streams: Streams, snapping: bool = True,
         live: Tensor | None = None, units: Neighbours | None = None, rounds: int = ROUNDS,
         progress: Progress = silent) -> Peeled:
    """raw (r, d): basis of the span in pixel units; gauge (r,): gauge . c = 1 for a training image, if known.

    live (d,) bool: pixels where a training image can have ink; None: all. units: of the layer that the basis is of, to
    start from images and units together; there is no second start to agree with then.
    """
    R, g = orthonormal(raw, gauge)
    live = torch.ones(raw.shape[1], dtype=torch.bool) if live is None else live
    progress("unmixing", {"rank": float(len(R))})
    grown = None
    if units is not None:
        grown = unmix_by_units(R, g, features, live, units.within(raw @ R.T), streams=streams, progress=progress)
    start = grown or unmix(R, g, features, live, streams=streams, snapping=snapping)
    space, C, coefficients = start.space, start.C, start.coefficients
    fixed = torch.zeros(len(C), dtype=torch.bool)
    worth = at_edge(coefficients @ R) if snapping else fixed.clone()
    done, dry = 0, 0
    # MNIST, n = 500: 498 directions and 571 live pixels. The span holds points sparser than any digit. And to snap a
    # few flat pictures among 500 natural ones takes minutes.
    worthwhile = float(worth.double().mean()) > (FEW if len(R) > LARGE else 0.0)
    if worthwhile and needed(len(R), int(live.sum())) < CROWDED * int(live.sum()):
        snap_once(coefficients[worth], coefficients, fixed, R, g)
        # A few flat pictures among natural ones do not make the others easier. And where few arrive, the span is too
        # noisy: the rest would only be drawn to what looks like a digit (small start, n = 100: 53 % instead of 60).
        clean = int(fixed.sum()) > FEW * int(worth.sum())
        rounds = rounds if clean and int(worth.sum()) > FEW * len(worth) else 0
        while done < rounds and dry < DRY and bool((worth & ~fixed).any()):
            fresh = done % 2 == 1 and bool(fixed.any())             # every other round the open rows start anew
            C = refit(coefficients, fixed, space, streams(f"round {done}") if fresh else None)
            moved = torch.where(fixed[:, None], coefficients, images_of(C, space, R, g))
            # Of a fresh start only what is exact stays, or it would undo what the open rows have reached.
            candidates = moved[worth & ~fixed]
            coefficients = coefficients if fresh else moved
            new = snap_once(candidates, coefficients, fixed, R, g)
            done, dry = done + 1, 0 if new else dry + 1
            progress("snapping", {"done": done, "total": rounds, "exact": float(fixed.sum()), "of": float(len(C))})
        coefficients = closer(coefficients, fixed, worth, R, g) if clean else coefficients
    final = measure(coefficients, R)
    agreement = None if grown is not None else agreement_of(coefficients, space, R, g, streams)
    return Peeled(coefficients @ (R * live), fixed, final.violation, final.edge, independence(C, space.z),
                  agreement, worth, done, R, space)


def refit(coefficients: Tensor, fixed: Tensor, space: Whitened, rng: torch.Generator | None) -> Tensor:
    """Likelihood with the exact rows fixed; with rng the open rows start from an ICA of what the exact ones leave."""
    C = (coefficients @ space.K_inverse).float()
    if rng is not None:
        known = C[fixed]
        rest = torch.linalg.qr(known.T, mode="complete")[0][:, len(known):]         # (q, open)
        C = C.clone()
        C[~fixed] = fast_ica(rest.T @ space.z, rng=rng) @ rest.T
        return anneal(C, space.z, fixed=fixed)
    return likelihood(C, space.z, fixed=fixed)


def agreement_of(coefficients: Tensor, space: Whitened, R: Tensor, gauge: Tensor | None,
                 streams: Streams) -> Tensor:
    """Components that another random start finds again are real; artefacts of one start are not."""
    rng = streams("ica again")
    few = sampled(space.z, rng)
    other = likelihood(fast_ica(few, rng=rng, rounds=FIRST_ROUNDS), few, rounds=8)
    return ncc(coefficients @ R, images_of(other, space, R, gauge) @ R).abs().amax(1)


def orthonormal(raw: Tensor, gauge: Tensor | None) -> tuple[Tensor, Tensor | None]:
    L, V = torch.linalg.eigh(raw @ raw.T)
    kept = 1e-14 * L.max().clamp(min=1e-300) < L
    K = (V[:, kept] / L[kept].sqrt()).T
    return K @ raw, None if gauge is None else K @ gauge


def snap_once(candidates: Tensor, coefficients: Tensor, fixed: Tensor, R: Tensor, gauge: Tensor | None) -> int:
    """Snap candidates (k, r); each that is exact and new replaces an open row. How many were new."""
    if bool(fixed.any()):                                           # what is known need not be found again
        candidates = candidates[ncc(candidates @ R, coefficients[fixed] @ R).amax(1) < SAME]
    if len(candidates) == 0 or bool(fixed.all()):
        return 0
    if bool(fixed.any()):
        candidates = torch.cat([candidates, mirrored(candidates, coefficients[fixed], R)])
    s = snap(candidates @ R, R, gauge)
    if not bool(s.exact.all()):
        again = snap(candidates[~s.exact] @ R, R, gauge, below=BELOW)
        arrived = torch.nonzero(~s.exact).flatten()[again.exact]
        s.coefficients[arrived], s.exact[arrived] = again.coefficients[again.exact], True
    near = ~s.exact & (outside(candidates @ R) < 0.3)
    if bool(near.any()):                                            # nearly there, and drawn elsewhere
        again = snap(candidates[near] @ R, R, gauge, start=NEAR, below=BELOW)
        s.coefficients[near], s.exact[near] = again.coefficients, again.exact
    added = 0
    for i in torch.nonzero(s.exact).flatten().tolist():
        row = s.coefficients[i:i + 1]
        if bool(fixed.any()) and float(ncc(row @ R, coefficients[fixed] @ R).max()) >= SAME:
            continue
        # It takes the place of the open row it has most of, so that the rows stay a basis.
        share = torch.linalg.lstsq(coefficients.T, row[0], driver="gelsd").solution.abs().masked_fill(fixed, -1.0)
        seat = int(share.argmax())
        if float(share[seat]) < SHARE:
            continue
        coefficients[seat] = row[0]
        fixed[seat] = True
        added += 1
        if bool(fixed.all()):
            break
    return added


def mirrored(candidates: Tensor, known: Tensor, R: Tensor) -> Tensor:
    """The last point inside the box on the line through a candidate and the known image nearest to it.

    The difference of two similar images is sparser than either, so with one of them known the other is found as
    known - t (other - known), which lies outside the box and, turned round, inside it.
    """
    near = known[ncc(candidates @ R, known @ R).abs().argmax(1)]    # (k, r)
    away = candidates - near
    inside, best = outside(candidates @ R), candidates.clone()
    for t in MIRRORS:
        trial = near + t * away
        violation = outside(trial @ R)
        alike = torch.cosine_similarity(centred(trial @ R), centred(near @ R))
        violation[alike > SAME] = 1.0                               # the known image itself is no news
        better = violation < inside + FREE                          # mixtures of the two are inside as well: go on
        best[better] = trial[better]
        inside = torch.minimum(inside, violation)
    return best[outside(best @ R) < 0.9 * outside(candidates @ R) - FREE]


def closer(coefficients: Tensor, fixed: Tensor, worth: Tensor, R: Tensor, gauge: Tensor | None) -> Tensor:
    """Of the rest, take the snapped version where it fits the box better and is no copy of an exact one."""
    rest = torch.nonzero(worth & ~fixed).flatten()
    if len(rest) == 0:
        return coefficients
    before, after = measure(coefficients[rest], R), snap(coefficients[rest] @ R, R, gauge)
    better = after.violation < 0.5 * before.violation
    better &= ncc(after.coefficients @ R, coefficients[rest] @ R).diagonal() > 0.7
    if bool(fixed.any()):
        better &= ncc(after.coefficients @ R, coefficients[fixed] @ R).amax(1) < SAME
    out = coefficients.clone()
    out[rest[better]] = after.coefficients[better]
    return out


def ncc(a: Tensor, b: Tensor) -> Tensor:
    """(k, l) normalised cross-correlation of rows."""
    a, b = centred(a), centred(b)
    a = a / a.norm(dim=1, keepdim=True).clamp(min=1e-300)
    b = b / b.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return a @ b.T


def centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(1, keepdim=True)
