"""What an owner may put in front of a model, each a source over a source: oracle.wrap(lambda s: Rounded(s, 4)).

Rounded, Noisy, Clipped and Quantised change the numbers; LabelOnly changes what is answered at all. None of them
asks more than it is asked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foldline.errors import BadInput
from foldline.oracles.protocols import Kind, Source
from foldline.oracles.rowkeys import Counts, row_digests, short_keys
from foldline.oracles.wrappers import Cached, Relay, Retried, retried

__all__ = ["Cached", "Clipped", "LabelOnly", "Noisy", "Quantised", "Retried", "Rounded", "retried"]


class Rounded(Relay):
    """Every number of an answer to `decimals` places."""

    def __init__(self, source: Source, decimals: int) -> None:
        super().__init__(numeric(source, "Rounding"))
        if decimals != int(decimals) or not -12 <= decimals <= 17:
            raise BadInput(f"Rounding needs a whole number of decimals, not {decimals!r}.")
        self.decimals = int(decimals)

    def answer(self, x: Tensor) -> Tensor:
        y = self.source.answer(x)
        # In float64: a float32 times 10^7 has no digits left to round.
        return torch.round(y.double(), decimals=self.decimals).to(y.dtype)


class Noisy(Relay):
    """Gaussian noise of standard deviation `sigma` on every number of an answer.

    The noise is a function of the seed and the row, so asking again does not average it away and a resumed run sees
    the same numbers. `independent=True`: every asking of the same row draws anew (still a function of the seed, the
    row and how often it was asked).
    """

    def __init__(self, source: Source, sigma: float, seed: int = 0, *, independent: bool = False) -> None:
        super().__init__(numeric(source, "Noise"))
        if not 0 <= sigma < float("inf"):
            raise BadInput(f"Noise needs a standard deviation of zero or more, not {sigma}.")
        self.sigma, self.seed, self.independent = float(sigma), int(seed), independent
        self.counts = Counts()

    def answer(self, x: Tensor) -> Tensor:
        y = self.source.answer(x)                                           # (n, width)
        keys = short_keys(row_digests(x, self.dtype))
        times = self.counts.occurrences(keys) if self.independent else 0 * keys.astype("i8")
        start = torch.from_numpy(keys.view("i8")) ^ splitmix(torch.from_numpy(times) + (self.seed << 20))
        return (y.double() + self.sigma * gaussian(start, y.shape[1])).to(y.dtype)


def splitmix(z: Tensor) -> Tensor:
    """A well-known bijection of 64-bit integers that leaves no pattern (int64 arithmetic wraps around)."""
    z = z * -7046029254386353131
    z = (z ^ logical_right(z, 30)) * -4658895280553007687
    z = (z ^ logical_right(z, 27)) * -7723592293110705685
    return z ^ logical_right(z, 31)


def logical_right(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def gaussian(start: Tensor, width: int) -> Tensor:
    """(n,) integers -> (n, width) standard normal numbers, by Box and Muller"""
    places = torch.arange(1, width + 1)                                     # (width,)
    a, b = (splitmix(splitmix(start)[:, None] + places * k) for k in (2, -3))    # (n, width) each
    u, v = ((logical_right(z, 11).double() + 0.5) * 2.0**-53 for z in (a, b))   # in (0, 1)
    return torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * torch.pi * v)


class LabelOnly(Relay):
    """Values in, labels out: the largest output, or with one output 1 where it is >= threshold."""

    def __init__(self, source: Source, threshold: float = 0.0) -> None:
        super().__init__(source)
        if source.kind not in ("values", "labels"):
            raise BadInput(f"Labels are read off values, not off {source.kind}.")
        self.threshold = threshold

    @property
    def kind(self) -> Kind:
        return "labels"

    @property
    def width(self) -> int:
        return 1

    def answer(self, x: Tensor) -> Tensor:
        y = self.source.answer(x)
        if self.source.kind == "labels":
            return y
        labels = y.argmax(1) if y.shape[1] > 1 else (y[:, 0] >= self.threshold).to(torch.int64)
        return labels[:, None]


class Clipped(Relay):
    """Every number of an answer into [low, high]."""

    def __init__(self, source: Source, low: float, high: float) -> None:
        super().__init__(numeric(source, "Clipping"))
        if not low < high:
            raise BadInput(f"Clipping needs low < high, not {low} and {high}.")
        self.low, self.high = low, high

    def answer(self, x: Tensor) -> Tensor:
        return self.source.answer(x).clamp(self.low, self.high)


class Quantised(Relay):
    """Explanations as images: each gradient scaled to its own largest entry and rounded to `bits` bits.

    The value in front is left alone; so is the scale, which a viewer of the image needs to read its colours.
    """

    def __init__(self, source: Source, bits: int = 8) -> None:
        super().__init__(numeric(source, "Quantising"))
        if bits != int(bits) or not 1 <= bits <= 32:
            raise BadInput(f"Quantising needs 1 to 32 bits, not {bits!r}.")
        self.bits = int(bits)

    def answer(self, x: Tensor) -> Tensor:
        y = self.source.answer(x)
        value, numbers = (y[:, :1], y[:, 1:]) if self.kind == "gradient" else (y[:, :0], y)
        levels = max(2 ** (self.bits - 1) - 1, 1)                           # a sign and bits - 1 of magnitude
        scale = numbers.double().abs().amax(1, keepdim=True)                # (n, 1)
        step = torch.where(scale > 0, scale / levels, torch.ones_like(scale))
        return torch.cat([value, (torch.round(numbers.double() / step) * step).to(y.dtype)], 1)


def numeric(source: Source, what: str) -> Source:
    if source.kind == "labels":
        raise BadInput(f"{what} changes numbers, and this source answers labels.")
    return source
