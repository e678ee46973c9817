"""How much of a training set a reconstruction shows, beside what the same score gives for unseen data.

The honest score: candidates are matched one to one to the training rows by NCC (the assignment that maximises the
sum), and in the same way to as many unseen rows of the same kind. The threshold is the 99 % quantile of the unseen
scores, so that one unseen image in a hundred would pass; recovered is the share of training rows above it.
Beside it the published post-processing (scaling, NCC neighbours, voting within 0.9, SSIM, sorting).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foldline.errors import BadInput, Missing
from foldline.images import guessed_shape, pictures, size_of
from foldline.results import plain

FALSE_POSITIVES = 0.01
RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class ReconstructionScore:
    ncc: Tensor                     # (n,) of each training row with its own candidate; 0 where none was left
    match: Tensor                   # (n,) which candidate, -1 for none
    unseen_ncc: Tensor              # (n_unseen,) the same for unseen rows
    threshold: float                # NCC that 1 % of the unseen rows reach
    recovered: float                # share of training rows above it
    interval: tuple[float, float]   # 95 % bootstrap interval of `recovered`, threshold resampled too
    above: dict[str, int]           # training rows with NCC above 0.8, 0.9, 0.99
    unseen_above: dict[str, int]
    nulls: dict[str, float]         # recovered share of other guesses: the training mean, each row's nearest neighbour
    ssim: Tensor                    # (n,) published score: after voting; nan without image_shape
    unseen_ssim: Tensor

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = plain(self)
        return out


def score_reconstruction(samples: Tensor, train: Tensor, unseen: Tensor, *,
                         image_shape: tuple[int, ...] | None = None, seed: int = 0) -> ReconstructionScore:
    """samples (m, d), train (n, d), unseen (n', d): all in the same coordinates."""
    samples, train, unseen = (checked(t, name) for t, name in ((samples, "samples"), (train, "train"),
                                                                (unseen, "unseen")))
    if not samples.shape[1] == train.shape[1] == unseen.shape[1]:
        raise BadInput(f"samples, train and unseen must have the same width, not {samples.shape[1]}, "
                       f"{train.shape[1]} and {unseen.shape[1]}.")
    ncc, match = matched(samples, train)
    unseen_ncc, _ = matched(samples, unseen)
    threshold = float(torch.quantile(unseen_ncc, 1 - FALSE_POSITIVES))
    shape = image_shape if image_shape is not None else guessed_shape(train.shape[1], train)
    return ReconstructionScore(
        ncc=ncc, match=match, unseen_ncc=unseen_ncc, threshold=threshold,
        recovered=float((ncc > threshold).double().mean()), interval=bootstrap(ncc, unseen_ncc, seed),
        above={str(t): int((ncc > t).sum()) for t in (0.8, 0.9, 0.99)},
        unseen_above={str(t): int((unseen_ncc > t).sum()) for t in (0.8, 0.9, 0.99)},
        nulls=other_nulls(train, unseen, threshold),
        ssim=published(samples, train, shape), unseen_ssim=published(samples, unseen, shape))


def checked(t: Tensor, name: str) -> Tensor:
    if not isinstance(t, Tensor) or t.ndim != 2:
        raise BadInput(f"{name} must be a tensor of rows (n, d).")
    if name != "samples" and len(t) == 0:
        raise BadInput(f"{name} must have at least one row: a score needs its null.")
    if not bool(t.isfinite().all()):
        raise BadInput(f"{name} contains NaN or infinite numbers.")
    return t.detach().double()


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """(len(a), len(b)) NCC of rows; constant rows correlate with nothing."""
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    a = a / a.norm(dim=1, keepdim=True).clamp(min=1e-12)
    b = b / b.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return a @ b.T


def matched(samples: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """One-to-one: (NCC of each row with its candidate (n,), which candidate (n,))."""
    from scipy.optimize import linear_sum_assignment
    score, match = torch.zeros(len(rows), dtype=torch.float64), torch.full((len(rows),), -1)
    if len(samples) == 0:
        return score, match
    C = correlation(samples, rows)
    i, j = (torch.from_numpy(v) for v in linear_sum_assignment(-C.numpy()))
    score[j], match[j] = C[i, j], i
    return score, match


def bootstrap(ncc: Tensor, unseen: Tensor, seed: int) -> tuple[float, float]:
    rng = torch.Generator().manual_seed(seed)
    a = ncc[torch.randint(len(ncc), (RESAMPLES, len(ncc)), generator=rng)]
    b = unseen[torch.randint(len(unseen), (RESAMPLES, len(unseen)), generator=rng)]
    share = (a > torch.quantile(b, 1 - FALSE_POSITIVES, dim=1, keepdim=True)).double().mean(1)
    return float(torch.quantile(share, 0.025)), float(torch.quantile(share, 0.975))


def other_nulls(train: Tensor, unseen: Tensor, threshold: float) -> dict[str, float]:
    """What guesses that know the training set only roughly would score at the same threshold."""
    mean = correlation(train.mean(0, keepdim=True), train)[0]
    C = correlation(train, train)
    C.fill_diagonal_(-1.0)
    nearest = C.amax(1) if len(train) > 1 else torch.zeros(1)
    same, _ = matched(unseen, train)
    return {"training mean": float((mean > threshold).double().mean()),
            "nearest other training row": float((nearest > threshold).double().mean()),
            "unseen rows as candidates": float((same > threshold).double().mean())}


def published(samples: Tensor, rows: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """SSIM after the published post-processing: stretch to [0, 1], average all candidates whose NCC is within 0.9 of
    the best, compare. (n,), in the order of rows."""
    if shape is None or len(samples) == 0 or min(size_of(shape)[:2]) < 7:
        return torch.full((len(rows),), float("nan"), dtype=torch.float64)
    low, high = samples.amin(1, keepdim=True), samples.amax(1, keepdim=True)
    stretched = (samples - low) / (high - low).clamp(min=1e-12)
    C = correlation(samples, rows).T                                        # (n, m)
    best = C.amax(1, keepdim=True)
    votes = (0.9 * best <= C) & (best > 0) | (best == C)
    means = (votes.double() @ stretched) / votes.sum(1, keepdim=True)       # (n, d)
    return ssim(means, stretch_rows(rows), shape)


def stretch_rows(rows: Tensor) -> Tensor:
    """Rows in [0, 1] stay as they are; centred ones are stretched as candidates are."""
    if float(rows.min()) >= 0 and float(rows.max()) <= 1:
        return rows
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    return (rows - low) / (high - low).clamp(min=1e-12)


def ssim(a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        from torchmetrics.functional.image import structural_similarity_index_measure as measure
    except ImportError as error:
        raise Missing("SSIM needs torchmetrics: pip install 'foldline[metrics]'.") from error
    p, q = (pictures(t, shape).permute(0, 3, 1, 2) for t in (a, b))
    found = measure(p, q, data_range=1.0, reduction="none")
    values = found[0] if isinstance(found, tuple) else found
    return values.reshape(-1).double()
