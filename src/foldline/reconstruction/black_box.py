"""Training data from a span that a black box gave away: `fl.reconstruct_from_span`.

Input gradients lie in the span of the training rows as the network saw them, x_i - mean. With the mean known it is
appended to the basis, and its coefficient is 1 for every raw training row, which fixes sign and scale as the bias
does for weights. With the mean unknown the centred rows are unmixed; edges do not see a constant mean at all, scale
comes from the box, and each image is returned in both signs. The rest is peel.py. Cost: what recover_span asked, about
n + 20 explanations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.errors import BadInput
from foldline.randomness import Streams
from foldline.reconstruction.evidence import weigh
from foldline.reconstruction.features import Features, features_for
from foldline.reconstruction.noise_edge import NEAR, SHORTEST_TAIL
from foldline.reconstruction.peel import ROUNDS, peel
from foldline.reconstruction.result import Leak, ReconstructionResult, best_first, nothing
from foldline.reconstruction.snap import outside
from foldline.reconstruction.start_left import start_in_span
from foldline.reconstruction.starts import live_pixels
from foldline.reconstruction.weights import CONDENSED, Mean, checked_mean, checked_shape
from foldline.results import Progress, Provenance, Status, silent
from foldline.span.result import SpanResult

MIRRORED = 0.05         # share of ink outside the box below which an image's mirror fits the box too


def reconstruct_from_span(span: SpanResult, *, rng: torch.Generator, image_shape: tuple[int, ...] | None = None,
                          mean: Mean = None, box: tuple[float, float] | None = (0.0, 1.0),
                          features: Features | None = None, rounds: int = ROUNDS,
                          progress: Progress = silent) -> ReconstructionResult:
    """Training rows from what recover_span or recover_span_from_labels returned; mean, box: as in reconstruct."""
    streams = Streams(rng)
    B, gap = signal_basis(span)                                      # (r, d)
    if B.ndim != 2 or not bool(B.isfinite().all()):
        raise BadInput("span.basis must be a finite matrix of orthonormal rows.")
    d = B.shape[1]
    shape, notes = checked_shape(image_shape, d)
    offset, centred = checked_mean(mean, d)
    provenance = Provenance("reconstruct_from_span", streams.seed,
                            {"image_shape": shape, "mean": mean is not None, "box": box, "rounds": rounds,
                             "span": span.provenance})
    status = nothing_in(span, d)
    if status is not None:
        samples, weights, evidence = nothing(d)
        return ReconstructionResult(
            status=status, queries=span.queries, certificate=Leak(span.rank, span.noise_floor, gap, 0, False),
            provenance=provenance, samples=samples, weights=weights, evidence=evidence, estimated_n=0,
            singular_values=span.singular_values, image_shape=shape)
    low, high = box if box is not None else (0.0, 1.0)
    raw, gauge = with_mean(B, offset - low, centred)
    gauged = gauge is not None
    if not centred:
        notes.append("The mean is not known: rows are centred images scaled by their range, each in both signs.")
    found = peel(raw / (high - low), gauge, features or features_for(shape), streams=streams,
                 snapping=box is not None and (gauged or centred),
                 live=live_pixels(raw, offset - low if centred and box is not None else None), rounds=rounds,
                 progress=progress)
    weights, evidence = weigh(found, None)
    images = torch.where(found.flat[:, None], found.images.clamp(0, 1), found.images)       # as from weights
    rows = images * (high - low) + low - offset if gauged else images * (high - low)
    # Where nothing fixes the sign of a centred image, every guess is wrong for some kind of picture: both are given.
    free, seen = torch.ones(len(rows), dtype=torch.bool), True
    if centred:
        seen = float((features or features_for(shape))(offset[None] - low).norm()) > 1e-9 * float(offset.norm())
        free = either_sign(found.images, (offset - low) / (high - low)) & (gauged and not seen)
    if gauged and seen:
        notes.append(f"{len(raw)} rows are counted because the mean is taken as the training set's own; if it is not, "
                     f"there is one less.")
    if centred and bool(free.any()):
        notes.append(f"The mean has no edges, so it cannot fix the sign of {int(free.sum())} rows that would fit the "
                     f"box in either: those are given in both.")
    rows, weights = torch.cat([rows, -rows[free]]), torch.cat([weights, weights[free]])
    evidence = {name: torch.cat([value, value[free]]) for name, value in evidence.items()}
    samples, weights, evidence = best_first(rows, weights, evidence)
    exact = int(found.exact.sum())                                   # an image in both signs is one
    certificate = Leak(rank=len(B), noise_edge=span.noise_floor, gap=gap, exact=exact,
                       n_is_exact=span.status.ok and len(B) == span.rank and ends(span.singular_values, len(B), gap))
    if not span.status.ok:
        notes.append(f"The span itself is incomplete ({span.status.code}).")
    said = f"{len(B)} directions from {span.queries} queries; {exact} images were confirmed by the pixel box."
    outcome = start_in_span(B, shape, offset - low if centred and box is not None else None) or Status("ok", said)
    return ReconstructionResult(
        status=Status(outcome.code, outcome.message, tuple(notes)), queries=span.queries, certificate=certificate,
        provenance=provenance, samples=samples, weights=weights, evidence=evidence,
        estimated_n=len(raw) if seen else len(B),
        image_shape=shape, singular_values=span.singular_values)


def ends(s: Tensor, r: int, gap: float) -> bool:
    """Whether the spectrum ends after r values, or only sinks into the noise: its gap is wider than any step before."""
    steps = s[:r - 1] / s[1:r]
    return len(steps) == 0 or gap > 2 * float(steps[len(steps) // 2:].max())


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


def nothing_in(span: SpanResult, d: int) -> Status | None:
    if span.rank == 0:
        return Status("no_gap", f"The span is empty ({span.status.message}): nothing to unmix.")
    if span.rank >= d:
        return Status("full_rank", "The span is all of the input space: either the training set has as many points as "
                      "inputs, or the start was never forgotten. It says nothing about training rows.")
    if span.rank <= CONDENSED:
        return Status("condensed", f"The network looks at {span.rank} directions only: prototypes, not training rows.")
    return None


def signal_basis(span: SpanResult) -> tuple[Tensor, float]:
    """The directions to unmix, and the gap after them.

    recover_span counts only what it is sure of. Unmixing would rather have a weak direction too many than one too few
    (a missing one blurs every image that has a part in it), and a network that still carries its random start has
    exact gradients of any rank. So everything above twice the median of the tail counts: m noise rows in d >> m
    dimensions have singular values within sqrt(m / d) of each other. Spans from labels are made of boundary normals,
    already cleaned: they are taken as they are.
    """
    s, V, r = span.singular_values, span.directions.double(), span.rank
    m = min(len(s), len(V))
    start = r if span.status.ok else min(r, m - max(SHORTEST_TAIL, m // 4))
    if span.provenance.method == "recover_span" and CONDENSED < start <= m - SHORTEST_TAIL:
        seen = int((s[:m] > NEAR * s[start:m].median()).sum())
        r = seen if seen > CONDENSED else r
    gap = float(s[r - 1] / s[r].clamp(min=1e-300)) if 0 < r < m else 1.0
    return (V[:r] if r != span.rank else span.basis.double()), gap
