"""What learning returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foldline.extract.learn_certificate import LearnCertificate
from foldline.networks.one_hidden import Network
from foldline.results import Result


@dataclass(frozen=True, eq=False)
class Trace:
    """One line, for a plot: what was seen at `t` (NaN where nothing was), what was learnt, and where it folds."""

    t: torch.Tensor             # (n,)
    value: torch.Tensor         # (n,)
    learnt: torch.Tensor        # (n,)
    folds: torch.Tensor         # (m,)


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnResult(Result):
    network: Network
    certificate: LearnCertificate
    units: int
    merged: tuple[tuple[int, ...], ...]         # groups of recovered units that became one fold
    dropped: int                                # units beyond the Gaussian's reach, now affine or gone
    tangles: int                                # stretches of lines narrower than the resolution, taken as one fold
    lines: int
    handed_over: bool                           # exact extraction did it
    noise: float                                # typical error of one answer
    history: tuple[tuple[int, float], ...]      # (rows asked, relative error on the probes so far)
    trace: Trace | None


def describe(result: LearnResult) -> dict[str, Any]:
    """The numbers a person reads first."""
    c = result.certificate
    return {"rows": result.queries, "units": result.units, "relative error": c.relative_error, "bound": c.bound,
            "confidence": c.confidence, "tails up to kurtosis": c.kurtosis, "probes": c.probes,
            "groups merged": len(result.merged), "units out of reach": result.dropped, "lines": result.lines}
