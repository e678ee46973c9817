"""Where a method may ask: all of space (Gaussian points), or the box that the target declares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.oracles.protocols import Box


@dataclass(frozen=True)
class Region:
    dim: int
    box: Box | None

    @property
    def name(self) -> str:
        return "standard normal" if self.box is None else f"uniform on the box [{self.box[0]:g}, {self.box[1]:g}]"

    def points(self, n: int, *, rng: torch.Generator) -> Tensor:
        """(n, d)"""
        if self.box is None:
            return torch.randn(n, self.dim, generator=rng, dtype=torch.float64)
        lo, hi = self.box
        x = lo + (hi - lo) * torch.rand(n, self.dim, generator=rng, dtype=torch.float64)
        # Uniform points of a high-dimensional box all lie near its centre: every other one is pushed to its faces.
        wide = ((x - 0.5 * (lo + hi)) * 2.5 + 0.5 * (lo + hi)).clamp(lo, hi)
        every_other = (torch.arange(n) % 2 == 1)[:, None]
        return torch.where(every_other, wide, x)

    def chord(self, *, rng: torch.Generator, margin: float = 0.02) -> tuple[Tensor, Tensor]:
        """Two points of the box, far apart, with room to step around them: x0 (d,), x1 (d,)."""
        assert self.box is not None
        lo, hi = self.box
        c, r = 0.5 * (lo + hi), 0.5 * (hi - lo) * (1 - 2 * margin)
        side = torch.randint(0, 2, (self.dim,), generator=rng).double() * 2 - 1
        depth = 0.25 + 0.75 * torch.rand(2, self.dim, generator=rng, dtype=torch.float64)
        shift = 0.1 * (torch.rand(self.dim, generator=rng, dtype=torch.float64) - 0.5)
        a, b = c + r * side * depth[0], c - r * side * depth[1] + r * shift
        return a.clamp(c - r, c + r), b.clamp(c - r, c + r)

    def clamp(self, x: Tensor) -> Tensor:
        return x if self.box is None else x.clamp(*self.box)
