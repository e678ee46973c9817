"""Training data from a span that a black box gave away: `fl.reconstruct_from_span`.

Input gradients lie in the span of the training rows as the network saw them, x_i - mean; basis.py takes it from there.
Cost: what recover_span asked, about n + 20 explanations.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from foldline.errors import BadInput
from foldline.images import low_frequencies, size_of
from foldline.randomness import Streams
from foldline.reconstruction.basis import rows_in, unconfirmed
from foldline.reconstruction.by_public import by_public_without_bias
from foldline.reconstruction.features import Features, features_for
from foldline.reconstruction.noise_edge import NEAR, SHORTEST_TAIL
from foldline.reconstruction.peel import ROUNDS
from foldline.reconstruction.result import Leak, ReconstructionResult, best_first, nothing
from foldline.reconstruction.separator import Separator
from foldline.reconstruction.start_left import start_in_span
from foldline.reconstruction.strokes import prior_for
from foldline.reconstruction.weights import CONDENSED, Mean, checked_mean, checked_shape
from foldline.results import Progress, Provenance, Status, silent
from foldline.span.rank import ROUGH_GAP
from foldline.span.result import SpanResult

SMOOTH = 0.5            # share of the frequencies of a colour picture


def reconstruct_from_span(span: SpanResult, *, rng: torch.Generator, image_shape: tuple[int, ...] | None = None,
                          mean: Mean = None, box: tuple[float, float] | None = (0.0, 1.0),
                          features: Features | None = None, rounds: int = ROUNDS,
                          public: Separator | Literal[False] | None = None,
                          progress: Progress = silent) -> ReconstructionResult:
    """Training rows from what recover_span(_from_labels) returned; mean, box, public: as in reconstruct."""
    streams = Streams(rng)
    B, gap = signal_basis(span)                                      # (r, d)
    if B.ndim != 2 or not bool(B.isfinite().all()):
        raise BadInput("span.basis must be a finite matrix of orthonormal rows.")
    d = B.shape[1]
    shape, notes = checked_shape(image_shape, d, B)
    prior = prior_for(False if public is None and features is not None else public, shape)
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
    found = rows_in(B, offset, centred, box, features or features_for(shape), streams=streams, rounds=rounds,
                    progress=progress)
    if prior is not None:
        found = by_public_without_bias(found, B, offset, centred, box, prior, progress=progress)
    pinned = found.exact
    if not span.status.ok:
        found = unconfirmed(found)
    notes += found.notes
    samples, weights, evidence = best_first(found.rows, found.weights, found.evidence)
    certificate = Leak(rank=len(B), noise_edge=span.noise_floor, gap=gap, exact=found.exact,
                       n_is_exact=span.status.ok and len(B) == span.rank and ends(span.singular_values, len(B), gap))
    asked = span.provenance.parameters.get("within")
    if asked is not None:
        notes.append(f"Gradients were asked for within {asked} of {d} directions: what lies outside is missing from "
                     f"the images.")
    if not span.status.ok:
        notes.append(f"The span itself is incomplete ({span.status.code}): the pixel box pins {pinned} images in it, "
                     f"which may lack what the span lacks, so none of them counts as confirmed.")
    said = f"{len(B)} directions from {span.queries} queries; {found.exact} images were confirmed by the pixel box."
    above = offset - box[0] if centred and box is not None else None
    outcome = start_in_span(B, shape, above) or Status("ok", said)
    return ReconstructionResult(
        status=Status(outcome.code, outcome.message, tuple(notes)), queries=span.queries, certificate=certificate,
        provenance=provenance, samples=samples, weights=weights, evidence=evidence,
        estimated_n=found.n, image_shape=shape, singular_values=span.singular_values)


def where_to_look(image_shape: tuple[int, ...] | None) -> Tensor | None:
    """For recover_span(within=) from values: (p, d), or None where every input counts.

    Half of the frequencies hold what tells natural pictures apart (CIFAR-10, n = 100: their true span, cut so, unmixes
    to 98 % as the whole one does; a third to 45 %), and twice as many points for the same rows show weaker directions.
    Digits are sharp, and small enough.
    """
    if image_shape is None or size_of(image_shape)[2] == 1:
        return None
    return low_frequencies(image_shape, SMOOTH)


def ends(s: Tensor, r: int, gap: float) -> bool:
    """Whether the spectrum ends after r values, or only sinks into the noise: its gap is wider than any step before."""
    steps = s[:r - 1] / s[1:r]
    return len(steps) == 0 or gap > 2 * float(steps[len(steps) // 2:].max())


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
    already cleaned: they are taken as they are. So are spans from values that end in a gap, or within a subspace: each
    row's noise is known there, and one as good as it gets may stand out of a tail of others.
    """
    s, V, r = span.singular_values, span.directions.double(), span.rank
    m = min(len(s), len(V))
    start = r if span.status.ok else min(r, m - max(SHORTEST_TAIL, m // 4))
    ends_in_gap = span.queries > 2 * len(span.gradients) and span.status.ok and span.certificate.gap >= ROUGH_GAP
    weighed = ends_in_gap or span.provenance.parameters.get("within") is not None
    if span.provenance.method == "recover_span" and CONDENSED < start <= m - SHORTEST_TAIL and not weighed:
        seen = int((s[:m] > NEAR * s[start:m].median()).sum())
        r = seen if seen > CONDENSED else r
    gap = float(s[r - 1] / s[r].clamp(min=1e-300)) if 0 < r < m else 1.0
    return (V[:r] if r != span.rank else span.basis.double()), gap
