"""What a target is like, from a few hundred rows: its answers' kind, rounding, noise and speed.

Noise is what remains when the same batch is asked again, and what a short straight segment shows: inside one linear
piece the second differences of a clean answer are rounding errors, those of an answer with (even repeatable) noise
are not. Cost: 2 n + 8 + 32 + one batch of 1,024 for the speed, about 1,200 rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from foldline.errors import BudgetExhausted, FoldlineError
from foldline.oracles.ledger import Ledger
from foldline.oracles.local import gradient_oracle, value_oracle
from foldline.oracles.protocols import Box, ValueOracle
from foldline.randomness import Streams, generator
from foldline.results import Provenance, Result, Status

OutputKind = Literal["logits", "probabilities", "log-probabilities", "one value", "one probability", "labels",
                     "unknown"]
SPEED_ROWS = 1024
LINE = 32                   # points on the short segment


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetProbe(Result):
    dim: int
    outputs: int | None
    dtype: str
    box: Box | None
    output_kind: OutputKind
    deterministic: bool | None      # the same batch, asked twice, is answered with the same bits
    batch_effect: float | None      # how far an answer moves when it is asked alone instead of in a batch
    decimals: int | None            # places the answers are rounded to; None: no rounding seen
    noise: float | None             # standard deviation of what a clean target would not add
    gradients: bool                 # whether it also answers input gradients
    rows_per_second: float | None
    low: float | None               # range of the answers seen
    high: float | None


def probe(target: Any, *, rng: torch.Generator | None = None, n: int = 64, budget: int | None = None,
          dim: int | None = None, input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> TargetProbe:
    """Dims, dtype, determinism, output kind, decimals, noise and throughput of a target."""
    streams = Streams(generator(0) if rng is None else rng)
    ledger = Ledger(budget)
    f = value_oracle(target, dim=dim, input_shape=input_shape, box=box, ledger=ledger)
    asked = Findings()
    status = Status("ok", "Done.")
    try:
        measure(f, asked, streams, n)
    except BudgetExhausted as error:
        status = Status("budget", "The budget ran out before everything was measured; a probe asks "
                        f"{2 * n + min(n, 8) + LINE + SPEED_ROWS + 1} rows.", (str(error),))
    gradients = False
    if asked.kind not in ("labels", "unknown") and status.ok:
        gradients = answers_gradients(target, f, ledger, dim=dim, input_shape=input_shape, box=box)
    y = asked.first
    return TargetProbe(
        status=status, queries=ledger.used, certificate=None, dim=f.dim, outputs=None if y is None else y.shape[1],
        dtype=str(f.dtype).removeprefix("torch."), box=f.box, output_kind=asked.kind,
        deterministic=asked.deterministic, batch_effect=asked.batch_effect, decimals=asked.decimals, noise=asked.noise,
        gradients=gradients, rows_per_second=asked.speed, low=None if y is None else float(y.min()),
        high=None if y is None else float(y.max()),
        provenance=Provenance("probe", streams.seed, {"n": n, "budget": budget}))


class Findings:
    """What has been measured so far; stays readable when the budget ends the probe early."""

    def __init__(self) -> None:
        self.kind: OutputKind = "unknown"
        self.first: Tensor | None = None
        self.deterministic: bool | None = None
        self.batch_effect: float | None = None
        self.decimals: int | None = None
        self.noise: float | None = None
        self.speed: float | None = None


def measure(f: ValueOracle, found: Findings, streams: Streams, n: int) -> None:
    x = points(f, n, streams("points"))
    y = found.first = f(x).double()                                     # (n, k)
    found.kind = kind_of(y)
    found.decimals = decimals_of(y, f.dtype)
    again = f(x).double()
    found.deterministic = bool(torch.equal(y, again))
    repeat = float((y - again).std()) / 2**0.5
    few = min(n, 8)
    alone = torch.cat([f(row[None]) for row in x[:few]]).double()
    found.batch_effect = float((alone - y[:few]).abs().max()) if found.deterministic else None
    found.noise = max(repeat, 0.0 if found.kind == "labels" else line_noise(f, x[0], streams("line")))
    found.speed = speed(f, points(f, SPEED_ROWS, streams("speed")))


def points(f: ValueOracle, n: int, rng: torch.Generator) -> Tensor:
    if f.box is None:
        return torch.randn(n, f.dim, generator=rng, dtype=torch.float64)
    low, high = f.box
    return low + (high - low) * torch.rand(n, f.dim, generator=rng, dtype=torch.float64)


def kind_of(y: Tensor) -> OutputKind:
    k = y.shape[1]
    low, high = float(y.min()), float(y.max())
    whole = bool((y == y.round()).all())
    if k == 1:
        if whole and len(y.unique()) <= max(2, len(y) // 4):
            return "labels"
        return "one probability" if low >= 0 and high <= 1 else "one value"
    # Rounded probabilities no longer sum to one exactly; each of k entries may be off by half a last digit.
    slack = 1e-3 + 0.5 * k * 10.0 ** -(decimals_of(y, torch.float32) or 7)
    if low >= 0 and high <= 1 and bool(((y.sum(1) - 1).abs() <= slack).all()):
        return "probabilities"
    if high <= 0 and bool(((y.exp().sum(1) - 1).abs() <= slack).all()):
        return "log-probabilities"
    return "logits"


def decimals_of(y: Tensor, dtype: torch.dtype) -> int | None:
    """The fewest places that hold every number, if floating point could have held clearly more."""
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    tolerance = 4 * eps * y.abs().clamp_min(1e-300)                     # (n, k)
    for places in range(0, 16):
        if 0.5 * 10.0**-places < 50 * float(tolerance.max()):
            return None
        if bool(((y - torch.round(y, decimals=places)).abs() <= tolerance).all()):
            return places
    return None


def line_noise(f: ValueOracle, x: Tensor, rng: torch.Generator) -> float:
    """Median second difference on a short segment, beyond what the target's arithmetic explains."""
    u = torch.randn(f.dim, generator=rng, dtype=torch.float64)
    size = float(x.norm()) + 1.0
    eps = torch.finfo(f.dtype).eps
    length = size * max(1e-7, 1e3 * eps)                                # short: curvature and folds have no room
    t = torch.linspace(0.0, 1.0, LINE, dtype=torch.float64)[:, None]
    z = x + length * t * u / u.norm()
    if f.box is not None:
        z = z.clamp(*f.box)
    y = f(z).double()                                                   # (LINE, k)
    # Rounded inputs do not lie evenly on the line: fit against where they really lie instead.
    s = ((f.snap(z) - f.snap(z)[0]) @ u / u.norm())[:, None]            # (LINE, 1)
    A = torch.cat([torch.ones_like(s), s / max(float(s.abs().max()), 1e-300)], 1)
    rest = y - A @ torch.linalg.lstsq(A, y).solution                    # (LINE, k)
    level = float(rest.square().mean().sqrt())
    floor = 64 * eps * float(y.abs().max().clamp_min(1e-300))
    return level if level > floor else 0.0


def speed(f: ValueOracle, x: Tensor, clock: Callable[[], float] = time.perf_counter) -> float:
    """The better of two halves: the first may pay for waking threads up."""
    best = 0.0
    for half in x.chunk(2):
        start = clock()
        f(half)
        best = max(best, len(half) / max(clock() - start, 1e-9))
    return best


def answers_gradients(target: Any, f: ValueOracle, ledger: Ledger, **shape: Any) -> bool:
    try:
        g = gradient_oracle(target, ledger=ledger, **shape)
        g(torch.full((1, f.dim), 0.5 if f.box is None else sum(f.box) / 2, dtype=torch.float64))
    except FoldlineError:
        return False
    return True

