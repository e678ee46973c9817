"""From switches to wrappers: which Source stands over which.

The model is innermost, then the explanation, then noise, clipping, quantising and rounding, in the order in which an
owner would apply them: what leaves is rounded last.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from foldline.errors import BadInput, Refused
from foldline.oracles.defences import Noisy, Quantised, Rounded
from foldline.oracles.explain import EXPLAINS, Explain, Explained, Recipe
from foldline.oracles.local import LocalSource
from foldline.oracles.protocols import Source
from foldline.oracles.wrappers import Relay
from foldline.randomness import generator
from foldline.serving.steady import Steady
from foldline.serving.victim import Switches

ROWS_AT_ONCE = 32           # times the samples, per pass: bounds memory
METHODS: list[str] = list(EXPLAINS)


class Smoothed:
    """SmoothGrad over a source of gradients, with noise that depends on the row and the seed alone.

    Asked twice, a row has one answer: the noise cannot be averaged away by repeating, and a lost reply costs nothing.
    """

    def __init__(self, source: Source, *, samples: int = 50, sigma: float | None = None, seed: int = 0) -> None:
        self.source, self.seed = source, seed
        self.recipe = Recipe("smoothgrad", samples, sigma, rng=generator(seed))
        self.kind, self.dim, self.width = source.kind, source.dim, source.width
        self.dtype, self.box = source.dtype, source.box

    def answer(self, x: Tensor) -> Tensor:
        return torch.cat([self.part(rows) for rows in torch.split(x, ROWS_AT_ONCE)])

    def part(self, x: Tensor) -> Tensor:
        value = self.source.answer(x)[:, :1]                            # (n, 1): of the row itself
        sigma, samples = self.recipe.spread(x), self.recipe.samples     # (n, 1)
        noise = torch.stack([torch.randn(samples, self.dim, generator=generator(row_seed(row, self.seed)),
                                         dtype=torch.float64) for row in x])        # (n, samples, d)
        points = x.double()[:, None] + sigma.double()[:, None] * noise
        found = self.source.answer(points.reshape(-1, self.dim))[:, 1:].reshape(len(x), samples, self.dim)
        return torch.cat([value, found.double().mean(1).to(value.dtype)], 1)


def row_seed(row: Tensor, seed: int) -> int:
    data = row.double().contiguous().numpy().tobytes()
    digest = hashlib.blake2b(data, digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little") % 2**63


def explained(source: Steady, method: str, seed: int) -> Source:
    """The gradient source as the explanation a client asked for."""
    if method == "gradient":
        return source
    if method == "smoothgrad":
        return Smoothed(source, seed=seed)
    kind: Explain = next(k for k in EXPLAINS if k == method)
    if not isinstance(source.source, LocalSource):
        raise Refused(f"This model answers gradients but cannot be explained by {method}.")
    return Steady(Explained(source.source.target, Recipe(kind), source.source.output, faced=True, dim=source.dim,
                            input_shape=source.source.input_shape, box=source.box))


class ClippedExplanation(Relay):
    """Every entry of an explanation into [-bound, bound]; the value beside it stays."""

    def __init__(self, source: Source, bound: float) -> None:
        super().__init__(source)
        if not bound > 0:
            raise BadInput(f"Explanations are clipped at a positive bound, not at {bound}.")
        self.bound = bound

    def answer(self, x: Tensor) -> Tensor:
        block = self.source.answer(x)                                   # (n, 1 + d)
        return torch.cat([block[:, :1], block[:, 1:].clamp(-self.bound, self.bound)], 1)


def defended(source: Source, switches: Switches) -> Source:
    """Labels pass as they are: they are the model's decision, not its numbers."""
    if source.kind == "labels":
        return source
    if switches.noise is not None:
        source = Noisy(source, switches.noise, switches.seed)
    if source.kind == "gradient" and switches.clip is not None:
        source = ClippedExplanation(source, switches.clip)
    if source.kind == "gradient" and switches.bits is not None:
        source = Quantised(source, switches.bits)
    if switches.decimals is not None:
        source = Rounded(source, switches.decimals)
    return source
