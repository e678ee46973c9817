"""The judge's view of a reconstruction, in the form the report needs. Only `tell` functions come here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from foldline.auditing.subjects import Owner


@dataclass(frozen=True, eq=False)
class Verdict:
    """`score` is the judge's own result; the rest is what sentences and pictures need."""

    score: Any
    count: int                  # training samples recovered at 1 % false positives
    null_count: int             # unseen samples that pass the same threshold
    threshold: float
    train_ncc: Tensor           # (n,) best one-to-one match of each training sample
    unseen_ncc: Tensor
    train_match: Tensor         # (n,) which recovered sample it is, -1 for none
    nearest_unseen: Tensor      # (n,) for each training sample's partner, the unseen sample most like it
    nearest_unseen_ncc: Tensor


def judge(samples: Tensor, owner: Owner) -> Verdict:
    import foldline as fl
    score = fl.score_reconstruction(samples, owner.train, owner.unseen)
    raise AssertionError(score)
