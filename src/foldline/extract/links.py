"""Probabilities back to logits: a sigmoid or softmax is inverted before anything is extracted.

A sigmoid's logit is log(p / (1 - p)), and its gradient is grad p / (p (1 - p)). A softmax gives log-ratios: logits up
to a common shift, which no answer reveals, so the first logit is taken as zero and k - 1 outputs remain. A single
linear layer then costs one gradient row (logistic regression) or, from values, d + 1 rows (any number of classes, all
outputs at once); the gradient of one softmax output does not separate the classes' rows, so a multinomial model is
taken from values.

Near 0 and 1 a probability keeps few digits of its logit: the answers' precision there is eps / (p (1 - p)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foldline.extract.noise import decimals_of, precision_of
from foldline.networks.one_hidden import Link, Network
from foldline.oracles.protocols import Box, Kind, Source, ValueOracle

TINY = 1e-300
LENGTHS = (1e-3, 3e-2, 0.3, 1.0)        # of the stretches that tell a link from none, relative to |x|
NEAR = 4.0                  # how far out a line may go: a saturated probability says nothing about its logit
LOOSE = 1e4                 # 1 / (p (1 - p)) at the far end of what is still used
SATURATED = 4.0             # and where float32 leaves too few digits for that


@dataclass(eq=False)
class Unlinked:
    """A Source of logits over a Source of probabilities."""

    inner: Source
    link: Link
    kind: Kind
    dim: int
    width: int
    dtype: torch.dtype
    box: Box | None

    @classmethod
    def over(cls, inner: Source, link: Literal["sigmoid", "softmax"], outputs: int | None = None) -> Unlinked:
        """outputs: how many the target has, where the source cannot say."""
        width = inner.width or outputs or 1
        width = width - 1 if link == "softmax" and inner.kind == "values" else width
        # Logits of a float32 model keep its grid: the inputs are still rounded to it.
        return cls(inner, link, inner.kind, inner.dim, width, inner.dtype, inner.box)

    def answer(self, x: Tensor) -> Tensor:
        block = self.inner.answer(x).double()
        if self.kind == "gradient":
            p = block[:, :1]
            slope = (p * (1 - p)).clamp_min(TINY)
            return torch.cat([logit(p), block[:, 1:] / slope], 1)
        if self.link == "sigmoid":
            return logit(block)
        logs = block.clamp_min(TINY).log()
        return logs[:, 1:] - logs[:, :1]


def logit(p: Tensor) -> Tensor:
    return p.clamp_min(TINY).log() - (1 - p).clamp_min(TINY).log()


def link_of(y: Tensor) -> Link:
    """What the answers y (n, k) look like: rows that sum to one, numbers strictly between 0 and 1, or anything."""
    y = y.double()
    inside = bool(((y > 0) & (y < 1)).all())
    if not inside:
        return "identity"
    if y.shape[1] > 1:
        r = decimals_of(y)
        eps = 1e-5 if bool((y.float().double() == y).all()) else 1e-9 if r is None else 0.51 * y.shape[1] * 10.0**-r
        return "softmax" if bool(((y.sum(1) - 1).abs() < eps).all()) else "sigmoid"
    return "sigmoid"


def link_by_bending(f: ValueOracle, x0: Tensor, directions: Tensor) -> Link | None:
    """"identity" or "sigmoid" of answers between 0 and 1, by which of p and logit p runs straight; None if neither.

    x0 (d,), directions (n, d) of length one: 4 rows on each of 2 stretches per length. A fold inside a stretch bends
    both alike and counts for neither; short stretches hold none, long ones show what noise or a flat function hides.
    """
    radius = max(float(x0.norm()), 1.0)
    at = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    design = torch.stack([torch.ones_like(at), at], 1)
    lengths = [length for length in LENGTHS for _ in range(len(directions) // len(LENGTHS))]
    x = torch.cat([x0 + radius * length * at[:, None] * v for length, v in zip(lengths, directions, strict=False)])
    x = f.snap(x if f.box is None else x.clamp(*f.box))
    p = f(x).double().view(len(lengths), 4, -1)                      # (n, 4, k)
    if not bool(((p >= 0) & (p <= 1)).all()):
        return "identity"
    r = decimals_of(p)
    floor = 8 * precision_of(p, f.dtype) if r is None else 0.5 * 10.0**-r
    votes = 0
    for y in p:
        if not bool(((y > 0) & (y < 1)).all()):                      # rounded to 0 or 1
            continue
        z, slope = logit(y), (y * (1 - y)).amin(0)
        bend, bend_z = (t - design @ torch.linalg.lstsq(design, t).solution for t in (y, z))
        plain, inverted = float(bend.abs().max()), float((bend_z * slope).abs().max())
        votes += (plain > 8 * (inverted + floor)) - (inverted > 8 * (plain + floor))
    return None if votes == 0 else "sigmoid" if votes > 0 else "identity"


def linked(network: Network, link: Link) -> Network:
    """The network that answers through the link again: a softmax gets its first logit, zero, back."""
    if link != "softmax":
        return Network(network.W, network.b, network.A, network.P, network.q, link)
    A, P, q = (torch.cat([torch.zeros_like(t[:1]), t]) for t in (network.A, network.P, network.q))
    return Network(network.W, network.b, A, P, q, "softmax")
