"""Well-separated networks go to exact extraction: one line, one gradient a fold, digits to 1e-10.

It is tried first and asks what `extract_from_values` with the same generator asks, row for row: learning then costs
extraction and the certificate's probes, of which the Gaussian points that extraction asked for itself are part.

The hand-over is bounded. A line may take FIRST_ROWS; more only if these rows met folds rather than rounding errors.
Once the folds are counted, one gradient a piece may be asked and little more. What ends earlier is not of that kind,
and learning goes on: with the Gaussian points, and with the network if it explains most of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foldline.extract.learn_model import Array, Model
from foldline.extract.noise import SAFETY
from foldline.oracles.ledger import Ledger, Share
from foldline.oracles.protocols import InFront, Kind, Source, ValueOracle

FIRST_ROWS = 832            # the search of a line with about 140 folds
MOST_ROWS = 12_000          # and with 2,000
BENDS = (1e-9, 1e-3)        # how far a row beside a fold is off its neighbours' chord, relative to the answers ...
BENDING = 0.2               # ... and the share of such rows: 0.3 to 0.5 beside folds, 0.08 at most in rounding
LINK_ROWS = 3               # Gaussian points that extraction begins with
LARGE = 1e4                 # answers above this are passed on in their own unit: extraction's tolerances know one


class Allowance(Share):
    """A smaller budget inside another ledger, which may be raised. appeal() -> rows more, when it does not suffice."""

    def __init__(self, whole: Ledger, rows: int, appeal: Callable[[], int] = lambda: 0) -> None:
        super().__init__(whole, rows)
        self.appeal = appeal

    def allow(self, rows: int) -> None:
        self.budget = self.used + max(rows, 0)

    def charge(self, rows: int) -> None:
        assert self.budget is not None
        if self.used + rows > self.budget:
            self.budget += max(self.appeal(), 0)
        super().charge(rows)


class Watched(InFront):
    """A source that remembers the last batch it answered, and all of them while `keeping`. Answers are passed on in
    units of `unit`, a power of two that the first of them set, so nothing is rounded."""

    kind: Kind = "values"

    def __init__(self, source: Source, width: int) -> None:
        self.source, self.width = source, width
        self.last = torch.zeros(0, source.dim), torch.zeros(0, width)
        self.first: tuple[Tensor, Tensor] | None = None
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.keeping = False
        self.unit = 1.0

    def answer(self, x: Tensor) -> Tensor:
        y = self.source.answer(x)
        self.last = x.double(), y.double()
        if self.first is None:
            self.first = self.last
            size = float(self.last[1].abs().max())
            self.unit = 2.0 ** math.ceil(math.log2(size)) if size > LARGE else 1.0
        if self.keeping:
            self.kept.append(self.last)
        return y / self.unit


@dataclass(frozen=True, eq=False)
class HandOver:
    model: Model | None
    fresh: tuple[Array, Array]      # Gaussian points (n, d) and answers (n, m) that the model was not fitted to
    other: tuple[Array, Array]      # Gaussian points that led to further lines
    checks: int                     # networks that were put before fresh points
    noise: float = 0.0              # of an answer, where extraction had to work through it
    short: bool = False             # there are more folds than the budget can pay for, whatever the method


def try_extraction(f: ValueOracle, *, outputs: int, reserve: int, rng: torch.Generator) -> HandOver:
    """What exact extraction finds within its allowance. reserve: rows of the budget that it must leave."""
    from foldline.extract.values import extract_from_values
    source = Watched(f.source, outputs)
    checks: list[tuple[Tensor, Tensor]] = []
    lines, extra, appealed, short = 0, 0, False, False

    def left() -> int:
        return MOST_ROWS * 1000 if f.remaining is None else max(f.remaining - reserve, 0)

    def appeal() -> int:
        nonlocal appealed, extra, short
        if lines == 0:                                              # still on the first line
            # Asked once: later the folds lie so close that the bends beside them are as small as rounding.
            alive = not appealed and folding(source.kept)
            appealed = True
            short = short or (most < MOST_ROWS and (alive or 2 * most <= FIRST_ROWS))
            return min(MOST_ROWS, most) - allowance.used if alive else 0
        more = 64 + allowance.used // 20                            # a few more rows for what a line missed
        extra += more
        return min(more, left()) if extra <= 256 + allowance.used // 5 else 0

    def watch(stage: str, numbers: Mapping[str, float]) -> None:
        nonlocal lines, short
        if stage == "line":
            source.keeping = True
        elif stage == "folds":
            source.keeping, lines = False, lines + 1
            source.kept.clear()
            pieces, noisy = int(numbers.get("folds", 0)) + 2, "queries" not in numbers
            least = (pieces - 1) * f.dim // outputs                 # several outputs share a gradient's rows
            enough = pieces * (2 * f.dim + 24) + 256 if noisy else pieces * (f.dim + 2) * 11 // 10 + 64
            short = least > left()
            allowance.allow(0 if short else min(enough, left()))
        elif stage == "check":                                      # reported right after its probes were asked
            checks.append(source.last)

    most = left() // 3                                              # a line alone tells little
    allowance = Allowance(f.ledger, min(FIRST_ROWS, most), appeal)
    found = extract_from_values(ValueOracle(source, allowance), rng=rng, progress=watch)
    noise = 0.0
    if found.status.code in ("ok", "imprecise") and not checks:     # through noise: its probes are the last rows
        checks.append(source.last)
        if found.noise is not None:
            noise = source.unit * found.noise.value / (1 if found.noise.kind == "rounded" else SAFETY)
    usable = bool(checks) and found.network.link == "identity" and found.status.code != "budget"
    start = [source.first] if source.first is not None and len(source.first[0]) == LINK_ROWS else []
    if usable:
        model = Model.of(found.network)
        model.A, model.P, model.q = source.unit * model.A, source.unit * model.P, source.unit * model.q
        return HandOver(model, joined([*start, checks[-1]], f.dim, outputs),
                        joined(checks[:-1], f.dim, outputs), len(checks), noise)
    return HandOver(None, joined(start, f.dim, outputs), joined(checks, f.dim, outputs), 0, short=short)


def joined(batches: list[tuple[Tensor, Tensor]], d: int, m: int) -> tuple[Array, Array]:
    return (np.concatenate([np.zeros((0, d)), *(x.numpy() for x, _ in batches)]),
            np.concatenate([np.zeros((0, m)), *(y.numpy() for _, y in batches)]))


def folding(batches: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether the rows of a line, so far, lie beside folds; a search that chases rounding errors sees bends of 1e-12,
    or of 1 where the answers are nothing but rounding."""
    if not batches:
        return False
    x, y = (torch.cat(parts).numpy() for parts in zip(*batches, strict=True))
    far = x[np.square(x - x[0]).sum(1).argmax()] - x[0]
    t, first = np.unique((x - x[0]) @ far / np.linalg.norm(far).clip(1e-300), return_index=True)
    y = y[first]
    if len(t) < 3:
        return False
    a, b = np.diff(t)[:-1, None], np.diff(t)[1:, None]
    off = np.abs(y[1:-1] - (b * y[:-2] + a * y[2:]) / (a + b)).max(1)
    size = np.abs(y).max(1)
    size = np.maximum(np.maximum(size[:-2], size[2:]), np.maximum(size[1:-1], np.median(size)))
    return float(((off > BENDS[0] * size) & (off <= BENDS[1] * size)).mean()) >= BENDING
