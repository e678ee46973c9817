"""The judge's view of a reconstruction, in the form the report needs. Only `tell` functions come here."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foldline.auditing.subjects import Owner
from foldline.judge.reconstruction import ReconstructionScore, correlation


@dataclass(frozen=True, eq=False)
class Verdict:
    """`score` is the judge's own result; the rest is what sentences and pictures need."""

    score: ReconstructionScore
    count: int                  # training samples recovered at 1 % false positives
    null_count: int             # the same count by chance: unseen samples that pass, or that would pass as candidates
    unseen_passing: int
    nearest_unseen: Tensor      # (n,) for each training sample, the unseen sample most like it
    nearest_unseen_ncc: Tensor

    @property
    def threshold(self) -> float:
        return self.score.threshold

    @property
    def train_ncc(self) -> Tensor:
        return self.score.ncc


def judge(samples: Tensor, owner: Owner, mean_known: bool, image_shape: tuple[int, ...] | None = None) -> Verdict:
    """Samples are rows as the network saw them. Where the attacker did not know what it subtracts, they are compared
    with the owner's rows after the same subtraction; likeness through the common mean then counts for nobody."""
    import foldline as fl
    shift = 0.0 if owner.mean is None or mean_known else owner.mean
    train, unseen = owner.train - shift, owner.unseen - shift
    score = fl.score_reconstruction(samples, train, unseen, image_shape=image_shape)
    alike = correlation(train, unseen)                                          # (n, n_unseen)
    near = alike.max(1)
    passing = int((score.unseen_ncc > score.threshold).sum())
    # With few candidates the threshold is low, and then any image of the same kind may pass: the larger null counts.
    guesses = round(len(train) * score.nulls["unseen rows as candidates"])
    return Verdict(score, count=int((score.ncc > score.threshold).sum()), null_count=max(passing, guesses),
                   unseen_passing=passing, nearest_unseen=near.indices, nearest_unseen_ncc=near.values)


def in_pixels(samples: Tensor, mean: float | Tensor | None, inputs: Tensor | None) -> Tensor:
    """Samples as an attacker would look at them: with the mean added back, or else the mean of inputs he has."""
    if mean is not None:
        return samples + mean
    return samples if inputs is None else samples + inputs.mean(0)
