"""Candidates moved to where whoever knows other pictures of the kind sees a single one in them.

FastICA takes a component, bends it by a function of one number, and looks for what lies nearest in the span. Here it
is the separator's function of the whole picture:

    x <- what lies nearest in the span to separator(x),

ten times, from every candidate and from its negative, since the weaker of two mixed images is what is left where the
stronger one is taken away. A training image stays where it is, so more of them can be found than the span has
directions: of MNIST, small start, n = 100, the images' projections hold for 82 of 100 above NCC 0.9, where edges alone
hold 43. Digits that the box pins are snapped in the end.

Fit, how far the separator's picture agrees with what lies nearest to it in the span, is evidence: it correlates with
the true NCC by 0.75 and 0.78 (two victims). Cost: no queries; some thousand passes through the separator, seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from foldline.reconstruction.basis import Rows, with_mean
from foldline.reconstruction.peel import centred, ncc, orthonormal
from foldline.reconstruction.separator import CHUNK, Separator, left_alone, standardised
from foldline.reconstruction.snap import BELOW, outside, scaled, snap
from foldline.reconstruction.starts import FEW, at_edge
from foldline.reconstruction.strokes import look_drawn
from foldline.results import Progress

ROUNDS = 10
SAME = 0.95             # two candidates closer than this are one
ALIKE = 0.9             # a snapped image must still look like its candidate
WORTHWHILE = 0.4        # of the error taken away: 0.84 MNIST, 0.5 digits of 8 x 8 help; 0.2, CIFAR-10, loses images
ALONE = 0.95            # cosine with the separator's picture of it from which on an image may stay where it is
SETTLED = 0.9           # share of exact images from which on nothing is done to the rest unasked
DOUBTED = 0.9           # fit from which on something of a candidate is believed


def by_public_without_bias(found: Rows, B: Tensor, mean: Tensor, known: bool, box: tuple[float, float] | None,
                           separator: Separator, *, progress: Progress) -> Rows:
    """The same where the span is that of x - mean alone: B (r, d), the mean known or not, as in basis.py."""
    if not known and separator.unasked:
        return noted(found, "If these are handwriting, the mean would help: give it as mean=, and what foldline knows "
                     "of pen strokes can be used.")
    if not known:
        return noted(found, "The public images were not used: what they teach is of raw pixels, and the mean is not "
                     "known; their own is near to it, so give that as mean=.")
    if separator.unasked and float(mean.std()) < 1e-6 * float(mean.abs().max()):
        return found                                                # nothing fixes the sign and contrast of a row
    raw, gauge = with_mean(B, mean - (box[0] if box else 0.0), known)
    return by_public(found, raw, gauge, mean, box, separator, progress=progress)


def by_public(found: Rows, raw: Tensor, gauge: Tensor | None, offset: Tensor, box: tuple[float, float] | None,
              separator: Separator, *, progress: Progress) -> Rows:
    """found with its rows moved, but for exact ones; as it was, with a note, where the separator is worth too little.

    raw (r, d): basis of the span in pixels above the box's lower end; gauge (r,): gauge . m = 1 for a training image
    m raw, if known; offset (d,): what was subtracted from pixels.
    """
    low, high = box or (0.0, 1.0)
    P, zero, scale = raw / (high - low), low - offset, high - low
    if separator.worth < WORTHWHILE:
        return noted(found, f"The public images were not used: what they teach takes only {separator.worth:.0%} of the "
                     f"error away from mixtures of such pictures, and below {WORTHWHILE:.0%} more is lost than found.")
    candidates, exact = (found.rows - zero) / scale, found.evidence["exact"] > 0
    if separator.unasked and (float(exact.double().mean()) > SETTLED or "residual" in found.evidence):
        return found                                                # the box or the network bears the images out
    if separator.unasked and not look_drawn(candidates, separator):
        return noted(found, "Pictures of this size may be handwriting, but what was found does not look drawn with a "
                     "pen, so what foldline knows of pen strokes was not used.")
    progress(f"asking what {taught_by(separator)} teach", {"candidates": float(len(found.rows))})
    span = Span(P, gauge, separator)
    known, open_ = candidates[exact], candidates[~exact]
    moved, fit = span.moved(torch.cat([open_, -open_]), ROUNDS)
    pinned = torch.zeros(len(moved), dtype=torch.bool)
    if box is not None and len(moved) and float(at_edge(moved).double().mean()) > FEW:
        if float(exact.double().mean()) > FEW:                      # else the span is too noisy for the box to speak
            moved, pinned = snapped(moved, P, gauge)
        moved = moved.clamp(0, 1)
    # Where an image and what it was moved to differ both are kept; where they are one, the one that looks more alone.
    single = open_[left_alone(separator, open_) > ALONE]
    single = single.clamp(0, 1) if box is not None else single
    images = torch.cat([known, moved, single])
    fit = torch.cat([span.moved(known, 1)[1], fit, span.moved(single, 1)[1]])
    sure = torch.cat([torch.ones(len(known), dtype=torch.bool), pinned, torch.zeros(len(single), dtype=torch.bool)])
    kept = first_of_each(images, sure.double() + left_alone(separator, images))
    images, fit, sure = images[kept], fit[kept], sure[kept]
    soft = ((fit - DOUBTED) / (1 - DOUBTED)).clamp(0, 1)
    evidence = {"exact": sure.double(), "violation": outside(images), "fit": fit}
    weights = torch.where(sure, 0.9 + 0.1 * soft, 0.9 * soft)
    return noted(Rows(zero + scale * images, weights, evidence, int(sure.sum()), found.n, found.notes),
                 f"{len(open_)} candidates were moved by what {taught_by(separator)} teach; there may be more of them "
                 f"than training rows, and `fit` says how far each is one picture.")


def taught_by(separator: Separator) -> str:
    return "pen strokes drawn by a program" if separator.drawn else "public images of the kind"


def noted(rows: Rows, note: str) -> Rows:
    return Rows(rows.rows, rows.weights, rows.evidence, rows.exact, rows.n, [*rows.notes, note])


class Span:
    """The span as pictures of mean 0, which is all that the separator sees."""

    def __init__(self, P: Tensor, gauge: Tensor | None, separator: Separator) -> None:
        self.P, self.gauge, self.separator = P, gauge, separator
        self.Q = orthonormal(centred(P), None)[0].float()           # (q, d)
        self.to_basis = torch.linalg.pinv(centred(P))               # (d, r)

    def moved(self, images: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
        """(where images (k, d) end, scaled, in the span, and their fit); fewer where the gauge turns some away."""
        x, y = centred(images).float() @ self.Q.T @ self.Q, images.float()
        with torch.no_grad():
            for _ in range(rounds):
                parts = standardised(x).split(CHUNK)
                y = centred(torch.cat([self.separator.network(part) for part in parts])) if len(x) else y
                x = y @ self.Q.T @ self.Q
        fit = F.cosine_similarity(x, y, dim=1).double()
        m = x.double() @ self.to_basis                              # (k, r)
        if self.gauge is not None and rounds > 1:
            upright = m @ self.gauge > 0
            m, fit = m[upright], fit[upright]
        return scaled(m, self.P, self.gauge) @ self.P, fit


def snapped(images: Tensor, P: Tensor, gauge: Tensor | None) -> tuple[Tensor, Tensor]:
    """(images, whether the box pins them); what it does not pin stays as it was."""
    R, g = orthonormal(P, gauge)
    ends = snap(images, R, g, below=BELOW)
    there = ends.coefficients @ R
    pinned = ends.exact & (ncc(there, images).diagonal() > ALIKE)
    return torch.where(pinned[:, None], there, images), pinned


def first_of_each(images: Tensor, order: Tensor) -> Tensor:
    """Indices, by `order` from the top, of images that no earlier one is like."""
    alike, free = ncc(images, images) > SAME, torch.ones(len(images), dtype=torch.bool)
    kept = []
    for i in order.argsort(descending=True, stable=True).tolist():
        if free[i]:
            kept.append(i)
            free &= ~alike[i]
    return torch.tensor(kept, dtype=torch.int64)
