"""Noise that a network cannot see: random directions orthogonal to everything its first layer reads.

f(x) = s(A x) does not change when x moves in the null space of A. `obfuscate` moves x there by any length;
`obfuscate_in_box` keeps every coordinate in a box (pixels in [0, 1]) and says how much noise fits. `output_change`
measures what a partial span costs: how far the outputs move when only the first directions of a basis are respected.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foldline.errors import BadInput
from foldline.oracles.protocols import Box, ValueOracle
from foldline.randomness import Streams
from foldline.results import Provenance, Result, Status, fraction_upper_bound


def obfuscate(x: Tensor, basis: Tensor, scale: float = 1.0, *, rng: torch.Generator) -> Tensor:
    """x (n, d) or (d,) plus Gaussian noise in the null space of basis (r, d), `scale` times as long as each x.

    A zero x has no length: its noise is `scale` long. The basis' rows need not be orthonormal.
    """
    rows = x.double().reshape(-1, x.shape[-1])                              # (n, d)
    Q = orthonormal(basis, rows.shape[1])
    if len(Q) >= rows.shape[1]:
        raise BadInput(f"The basis spans all {rows.shape[1]} inputs: there is no null space to hide noise in.")
    if scale < 0 or scale != scale:
        raise BadInput(f"scale is a length in units of |x|, zero or more, not {scale}.")
    noise = null_part(torch.randn(rows.shape, generator=Streams(rng)("noise"), dtype=torch.float64), Q)
    length = rows.norm(dim=1, keepdim=True)
    length = torch.where(length == 0, torch.ones_like(length), length)
    moved: Tensor = rows + noise * (scale * length / noise.norm(dim=1, keepdim=True))
    return moved.reshape(x.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class BoxObfuscation(Result):
    """Noise inside a box: `samples` (n, d), and per row how long the noise is (over |x|) and how far off the span."""

    samples: Tensor             # (n, d)
    fits: Tensor                # (n,) |noise| / |x| that fits
    leak: Tensor                # (n,) |basis . noise| / |noise|: zero but for rounding and the program's tolerance


def obfuscate_in_box(x: Tensor, basis: Tensor, scale: float = 1.0, *, rng: torch.Generator,
                     box: Box = (0.0, 1.0)) -> BoxObfuscation:
    """Noise in the null space that keeps every coordinate in the box, up to `scale` times |x| where that much fits.

    A linear program per row (0.1 s at 784 inputs and rank 80) goes as far as the box allows in a random direction;
    the box is convex, so any shorter noise along it fits too.
    """
    rows = x.double().reshape(-1, x.shape[-1])                              # (n, d)
    low, high = box
    if not low < high:
        raise BadInput(f"A box needs low < high, not [{low}, {high}].")
    if bool(((rows < low) | (rows > high)).any()):
        raise BadInput(f"x itself leaves the box [{low}, {high}]; noise cannot bring it back.")
    if scale < 0 or scale != scale:
        raise BadInput(f"scale is a length in units of |x|, zero or more, not {scale}.")
    Q = orthonormal(basis, rows.shape[1])
    streams = Streams(rng)
    provenance = Provenance("obfuscate_in_box", streams.seed, {"scale": scale, "box": list(box)})
    length = rows.norm(dim=1)
    length = torch.where(length == 0, torch.ones_like(length), length)      # (n,)
    if len(Q) >= rows.shape[1]:
        nothing = torch.zeros_like(length)
        status = Status("full_rank", f"The basis spans all {rows.shape[1]} inputs: no noise fits, x is returned.")
        return BoxObfuscation(status=status, queries=0, certificate=None, provenance=provenance,
                              samples=rows.reshape(x.shape), fits=nothing, leak=nothing)
    wish = torch.randn(rows.shape, generator=streams("wish"), dtype=torch.float64)
    noise = torch.stack([farthest(one, Q, w, low, high) for one, w in zip(rows, wish, strict=True)])    # (n, d)
    size = noise.norm(dim=1)
    noise = noise * torch.minimum(torch.ones_like(size), scale * length / size.clamp_min(1e-300))[:, None]
    samples = (rows + noise).clamp(low, high)                               # moves last bits only
    noise = samples - rows
    size = noise.norm(dim=1)
    leak = (noise @ Q.T).norm(dim=1) / size.clamp_min(1e-300)
    fits = size / length
    share = float((fits >= 0.99 * scale).double().mean())
    message = f"Noise of {float(fits.median()):.3g} times |x| fits in the box (median; {float(fits.min()):.3g} to " \
              f"{float(fits.max()):.3g}); {share:.0%} of the rows got the {scale:g} asked for."
    return BoxObfuscation(status=Status("ok" if share == 1.0 else "box", message), queries=0, certificate=None,
                          provenance=provenance, samples=samples.reshape(x.shape), fits=fits, leak=leak)


def farthest(x: Tensor, Q: Tensor, wish: Tensor, low: float, high: float) -> Tensor:
    """The noise n furthest along `wish` (d,) with Q n = 0 and x + n in the box: a linear program.

    Its solution is a corner of the feasible set, so most coordinates sit on a wall: as much noise as there is room for.
    """
    from scipy.optimize import linprog
    bounds = torch.stack([low - x, high - x], 1).numpy()                    # (d, 2)
    equal = (Q.numpy(), torch.zeros(len(Q), dtype=torch.float64).numpy()) if len(Q) else (None, None)
    found = linprog(-wish.numpy(), A_eq=equal[0], b_eq=equal[1], bounds=bounds, method="highs",
                    options={"primal_feasibility_tolerance": 1e-10})
    if found.x is None:
        return torch.zeros_like(x)                                          # n = 0 is always feasible: numerics gave up
    return torch.as_tensor(found.x, dtype=torch.float64)


@dataclass(frozen=True)
class OutputChange:
    """Over n inputs: predictions kept, and the largest change of an output relative to the largest output."""

    rows: int
    kept: int
    largest_change: float
    kept_bound: float           # at 95 % confidence, at most this fraction of such inputs changes its prediction


def output_change(f: ValueOracle, x: Tensor, moved: Tensor) -> OutputChange:
    before, after = f(x).double(), f(moved).double()                        # (n, k)
    same = predictions(before) == predictions(after)
    largest = float((after - before).abs().max() / before.abs().max().clamp_min(1e-300))
    kept = int(same.sum())
    return OutputChange(len(x), kept, largest, fraction_upper_bound(len(x) - kept, len(x), 0.95))


def partial_span_curve(f: ValueOracle, x: Tensor, basis: Tensor, ranks: list[int], scale: float = 1.0, *,
                       rng: torch.Generator) -> list[tuple[int, OutputChange]]:
    """How much the outputs move when the noise avoids only the first r directions, for each r in ranks."""
    streams = Streams(rng)
    seed = streams.integer("noise")
    curve = []
    for r in ranks:
        noise_rng = torch.Generator().manual_seed(seed)                     # the same noise, cut by more directions
        curve.append((r, output_change(f, x, obfuscate(x, basis[:r], scale, rng=noise_rng))))
    return curve


def predictions(y: Tensor) -> Tensor:
    return y.argmax(1) if y.shape[1] > 1 else (y[:, 0] >= 0).long()


def orthonormal(basis: Tensor, d: int) -> Tensor:
    """Rows spanning the same space, orthonormal to the last bits."""
    if basis.ndim != 2 or basis.shape[1] != d:
        raise BadInput(f"The basis must have shape (rank, {d}), not {tuple(basis.shape)}.")
    if len(basis) == 0:
        return basis.double()
    _, s, V = torch.linalg.svd(basis.double(), full_matrices=False)
    rows: Tensor = V[:int((s > 1e-12 * s[0]).sum())]
    return rows


def null_part(z: Tensor, Q: Tensor) -> Tensor:
    """z minus its part in the rows of Q; twice, so that what is left there is rounding of the rest only."""
    for _ in range(2):
        z = z - (z @ Q.T) @ Q
    return z
