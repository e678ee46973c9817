"""What a reconstruction returns, whatever its method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.results import Result


@dataclass(frozen=True)
class Leak:
    """The certificate: what the attacker can know without the training set."""

    rank: int
    noise_edge: float           # singular values below it are noise; nan where there was no tail to see
    gap: float                  # last kept singular value over the first dropped one
    exact: int                  # images on the box's edge far beyond what the span forces
    n_is_exact: bool            # the spectrum ends in a gap, so estimated_n counts the training set


@dataclass(frozen=True, eq=False, kw_only=True)
class ReconstructionResult(Result):
    samples: Tensor             # (m, d) best first, in the network's input coordinates: add the mean for raw pixels
    weights: Tensor             # (m,) evidence in [0, 1]; for "kkt" and "atoms" the multipliers, largest 1
    estimated_n: int
    evidence: dict[str, Tensor]         # per sample, in the order of `samples`: what the weights were made of
    singular_values: Tensor
    image_shape: tuple[int, ...] | None


def best_first(samples: Tensor, weights: Tensor, evidence: dict[str, Tensor]) -> tuple[Tensor, Tensor,
                                                                                     dict[str, Tensor]]:
    order = weights.argsort(descending=True, stable=True)
    return samples[order], weights[order], {k: v[order] for k, v in evidence.items()}


def nothing(d: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    return torch.zeros(0, d, dtype=torch.float64), torch.zeros(0, dtype=torch.float64), {}
