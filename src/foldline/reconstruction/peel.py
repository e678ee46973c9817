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
from foldline.reconstruction.snap import measure, scaled, snap
from foldline.reconstruction.unmix import Whitened, fast_ica, independence, likelihood, whiten
from foldline.results import Progress, silent

PEELS = 8               # rounds of snapping at most
DRY = 2                 # rounds without a new exact image before it ends
AT_EDGE = 0.3           # share of pixels near the box's edge from which on a candidate is worth snapping
RESTARTS = 3            # further random starts whose components are snapped too
SAME = 0.95             # two images closer than this are one


@dataclass(frozen=True, eq=False)
class Peeled:
    images: Tensor          # (q, d) in units of the box
    exact: Tensor           # (q,) bool: snapped to the box's edge
    violation: Tensor       # (q,)
    edge: Tensor            # (q,)
    independence: Tensor    # (q,)
    agreement: Tensor       # (q,) NCC with the nearest component of a second, independent start
    rounds: int


def peel(raw: Tensor, gauge: Tensor | None, features: Features, *, streams: Streams, snapping: bool = True,
         restarts: int = RESTARTS, progress: Progress = silent) -> Peeled:
    """raw (r, d): basis of the span in pixel units; gauge (r,): gauge . c = 1 for a training image, if known."""
    R, g = orthonormal(raw, gauge)
    space = whiten(features(R))
    progress("unmixing", {"rank": float(len(R))})
    C = fast_ica(space.z, rng=streams("ica"))
    coefficients = images_of(C, space, R, g)
    fixed = torch.zeros(len(C), dtype=torch.bool)
    worth = at_edge(coefficients @ R) if snapping else fixed
    others: list[Tensor] = []
    rounds, dry = 0, 0
    while bool((worth & ~fixed).any()) and rounds < PEELS and dry < DRY:
        rounds += 1
        new = snap_once(coefficients[worth & ~fixed], coefficients, fixed, R, g)
        if len(others) < restarts:
            others.append(restart(len(others), space, R, g, streams))
            new += snap_once(others[-1], coefficients, fixed, R, g)
        dry = 0 if new else dry + 1
        progress("snapping", {"round": float(rounds), "exact": float(fixed.sum()), "of": float(len(C))})
        C = likelihood((coefficients @ space.K_inverse).float(), space.z, fixed=fixed)
        coefficients = torch.where(fixed[:, None], coefficients, images_of(C, space, R, g))
    if rounds == 0:
        C = likelihood(C, space.z)
        coefficients = images_of(C, space, R, g)
    else:
        coefficients = closer(coefficients, fixed, worth, R, g)
    if not others and restarts:
        others.append(images_of(likelihood(fast_ica(space.z, rng=streams("ica 0")), space.z), space, R, g))
    agreement = torch.stack([ncc(coefficients @ R, o @ R).abs().amax(1) for o in others]).mean(0) if others \
        else torch.zeros(len(C), dtype=torch.float64)
    final = measure(coefficients, R)
    return Peeled(coefficients @ R, fixed, final.violation, final.edge, independence(C, space.z), agreement, rounds)


def restart(i: int, space: Whitened, R: Tensor, gauge: Tensor | None, streams: Streams) -> Tensor:
    return images_of(fast_ica(space.z, rng=streams(f"ica {i}")), space, R, gauge)


def orthonormal(raw: Tensor, gauge: Tensor | None) -> tuple[Tensor, Tensor | None]:
    L, V = torch.linalg.eigh(raw @ raw.T)
    kept = 1e-14 * L.max().clamp(min=1e-300) < L
    K = (V[:, kept] / L[kept].sqrt()).T
    return K @ raw, None if gauge is None else K @ gauge


def images_of(C: Tensor, space: Whitened, R: Tensor, gauge: Tensor | None) -> Tensor:
    """Coefficients (q, r) in R of the components, scaled to images."""
    c = C.double() @ space.K
    if gauge is None:
        return scaled(c, R, None)
    # A component that hardly carries the constant cannot be scaled by it: bring its brightest pixel to 1 instead.
    share = (c @ gauge).abs() / (c.norm(dim=1) * gauge.norm()).clamp(min=1e-300)
    weak = share < 1e-4
    out = scaled(c, R, gauge)
    if bool(weak.any()):
        out[weak] = scaled(c[weak], R, None)
    return out


def at_edge(X: Tensor) -> Tensor:
    """(q,) natural pictures hardly touch the box: then snapping has nothing to hold on to."""
    share = ((X.abs() < 0.1) | ((X - 1).abs() < 0.1)).double().mean(1)
    return share > AT_EDGE


def snap_once(candidates: Tensor, coefficients: Tensor, fixed: Tensor, R: Tensor, gauge: Tensor | None) -> int:
    """Snap candidates (k, r); each that is exact and new replaces the open row nearest to it. How many were new."""
    if bool(fixed.any()):                                           # what is known need not be found again
        candidates = candidates[ncc(candidates @ R, coefficients[fixed] @ R).amax(1) < SAME]
    if len(candidates) == 0 or bool(fixed.all()):
        return 0
    s = snap(candidates @ R, R, gauge)
    near = (s.violation < 0.1) & ~s.exact
    if bool(near.any()):                                            # nearly there: once more from where it is
        again = snap(s.coefficients[near] @ R, R, gauge)
        s.coefficients[near], s.exact[near] = again.coefficients, again.exact
    added = 0
    for i in torch.nonzero(s.exact).flatten().tolist():
        row = s.coefficients[i:i + 1]
        seat = int(ncc(row @ R, coefficients @ R)[0].abs().masked_fill(fixed, -1.0).argmax())
        if bool(fixed[seat]):
            break
        if not bool(fixed.any()) or float(ncc(row @ R, coefficients[fixed] @ R).max()) < SAME:
            coefficients[seat] = row[0]
            fixed[seat] = True
            added += 1
    return added


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
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    a = a / a.norm(dim=1, keepdim=True).clamp(min=1e-300)
    b = b / b.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return a @ b.T
