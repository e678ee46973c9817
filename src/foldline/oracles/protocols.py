"""What may be asked: values, gradients or labels, each as one batched and metered call.

A Source answers; an oracle counts, checks and unpacks. Every wrapper (rounding, noise, a transcript, retries)
is a Source over a Source, so they compose in any order, and a test may replace the innermost by a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BadAnswer, BadQuery, FoldlineError, TargetError
from foldline.oracles.ledger import Ledger

# torch wakes a team of threads for more numbers than this. Where another process has the second core (a server on
# loopback) that team waits for it, 5 ms for a sum and 24 for a copy of 785,000 numbers where numpy takes 0.5.
ONE_THREAD = 32_768
Kind = Literal["values", "gradient", "labels"]
Box = tuple[float, float]


class Source(Protocol):
    """Answers a batch: x (n, d) -> block (n, width).

    values: width = number of outputs, None while nobody can know it without asking. gradient: width = 1 + d, the
    value first. labels: width = 1, int64. A source whose every query costs several rows of the target says so in
    an attribute `cost`.
    """

    @property
    def kind(self) -> Kind: ...
    @property
    def dim(self) -> int: ...
    @property
    def width(self) -> int | None: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def box(self) -> Box | None: ...

    def answer(self, x: Tensor) -> Tensor: ...


class InFront:
    """Something in front of a source, an oracle or a wrapper: it has the source's inputs, and what they cost."""

    source: Source

    @property
    def dim(self) -> int:
        return self.source.dim

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def box(self) -> Box | None:
        """Where every query must lie, if the target says so."""
        return self.source.box

    @property
    def cost(self) -> int:
        """Rows of the target that one query costs: 1, or more where gradients are differences of values."""
        return int(getattr(self.source, "cost", 1))


class Oracle(InFront):
    """The part all oracles share. `used` counts rows before they are sent; a budget is never crossed."""

    kind: Kind

    def __init__(self, source: Source, ledger: Ledger | None = None, *, budget: int | None = None) -> None:
        if source.kind != self.kind:
            raise ValueError(f"{type(self).__name__} needs a source of {self.kind}, not of {source.kind}.")
        self.source = source
        self.ledger = Ledger(budget) if ledger is None else ledger
        bill_losses(source, self.ledger)

    @property
    def used(self) -> int:
        return self.ledger.used

    @property
    def budget(self) -> int | None:
        return self.ledger.budget

    @property
    def remaining(self) -> int | None:
        return self.ledger.remaining

    def snap(self, x: Tensor) -> Tensor:
        """The points that are really asked: x rounded to the target's dtype, as float64."""
        return x.to(self.dtype).double()

    def wrap(self, wrapper: Callable[[Source], Source]) -> Self:
        """The same ledger over a wrapped source: oracle.wrap(lambda s: Rounded(s, 4))."""
        return type(self)(wrapper(self.source), self.ledger)

    def _ask(self, x: Tensor) -> Tensor:
        x = checked_queries(x, self.dim, self.box)
        self.ledger.charge(len(x) * self.cost)
        bill_losses(self.source, self.ledger)               # the last oracle over this source may have been another
        try:
            block = self.source.answer(x)
        except FoldlineError:
            raise
        except Exception as error:
            said = str(error).rstrip(".")
            raise TargetError(f"The target failed on a batch of {len(x)} rows with {type(error).__name__}: {said}. "
                              f"{self.used} rows were asked so far.") from error
        return checked_block(block, len(x), self.source.width)


class ValueOracle(Oracle):
    """f(x) -> (n, k)"""

    kind: Kind = "values"

    @property
    def outputs(self) -> int:
        """How many outputs there are. Where only an answer can tell, one row is asked, and billed."""
        if self.source.width is None:
            mid = 0.0 if self.box is None else 0.5 * (self.box[0] + self.box[1])
            return self._ask(torch.full((1, self.dim), mid, dtype=self.dtype)).shape[1]
        return self.source.width

    def __call__(self, x: Tensor) -> Tensor:
        return self._ask(x)


class GradientOracle(Oracle):
    """g(x) -> (y (n,), grad (n, d)): the value and the input gradient of one output"""

    kind: Kind = "gradient"

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        block = self._ask(x)                                        # (n, 1 + d)
        return block[:, 0], block[:, 1:]


class LabelOracle(Oracle):
    """lb(x) -> (n,) int64"""

    kind: Kind = "labels"

    def __call__(self, x: Tensor) -> Tensor:
        return self._ask(x)[:, 0]


def bill_losses(source: Any, ledger: Ledger) -> None:
    """A source that asks again what the network lost (endpoint.py) bills it here, through any wrappers over it."""
    while source is not None and not hasattr(source, "on_lost"):
        source = next((getattr(source, n) for n in ("source", "inner", "values") if hasattr(source, n)), None)
    if source is not None:
        source.on_lost = ledger.lose


def checked_queries(x: Tensor, dim: int, box: Box | None) -> Tensor:
    if not isinstance(x, Tensor):
        raise BadQuery(f"Queries must be a torch tensor of shape (n, {dim}), not {type(x).__name__}.")
    if x.ndim != 2 or x.shape[1] != dim:
        raise BadQuery(f"Queries must have shape (n, {dim}), not {tuple(x.shape)}.")
    if len(x) == 0:
        raise BadQuery("An empty batch asks nothing: queries need at least one row.")
    if not x.is_floating_point():
        raise BadQuery(f"Queries must be floating point, not {x.dtype}.")
    x = x.detach()
    if not all_finite(x):
        raise BadQuery("Queries contain NaN or infinite numbers; nothing was asked.")
    if box is not None:
        low, high = (float(v) for v in x.aminmax())
        if not (low >= box[0] and high <= box[1]):
            raise BadQuery(f"Queries must lie in the box [{box[0]}, {box[1]}] that the target declares, "
                           f"but range over [{low:.6g}, {high:.6g}]; nothing was asked.")
    return x


def checked_block(block: Tensor, rows: int, width: int | None) -> Tensor:
    if not isinstance(block, Tensor) or block.ndim != 2:
        raise BadAnswer(f"The target answered {describe(block)} where a table of {rows} rows was expected.")
    if len(block) != rows or block.shape[1] != (width or block.shape[1]) or block.shape[1] == 0:
        raise BadAnswer(f"The target answered {tuple(block.shape)} to {rows} rows; "
                        f"({rows}, {width or 'k'}) was expected.")
    if block.is_floating_point() and not all_finite(block):
        bad = int((~block.isfinite().all(1)).sum())
        raise BadAnswer(f"The target answered NaN or infinity for {bad} of {rows} rows.")
    return block


def all_finite(block: Tensor) -> bool:
    """A sum is finite only if all its terms are; large finite numbers may overflow it, then each is looked at."""
    block = block.detach()
    if block.numel() > ONE_THREAD and block.device.type == "cpu" and block.dtype in (torch.float32, torch.float64):
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(block.numpy().sum())
    else:
        total = float(block.sum())
    return math.isfinite(total) or bool(block.isfinite().all())


def joined(blocks: Sequence[Tensor]) -> Tensor:
    """One block of several, as torch.cat, without waking threads."""
    if len(blocks) == 1:
        return blocks[0]
    if any(b.device.type != "cpu" for b in blocks):
        return torch.cat(list(blocks))
    return torch.from_numpy(np.concatenate([b.detach().numpy() for b in blocks]))


def describe(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
