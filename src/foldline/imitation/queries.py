"""Where queries come from: rows at hand (the data distribution or another data set), noise, or both.

Random rows show few classes and have margins that never move; on N(0, I) a convolutional network answers almost the
same everywhere. Three choices know no more than rows without labels, or that inputs are pictures:

    spread_rows      rows that are unlike each other (D^2 sampling, as k-means++ starts): few rows, many classes
    blended_rows     half of one such row, half of another, and a little smooth noise on top
    smooth_rows      Gaussian fields, that is noise whose neighbouring pixels are alike

SmoothGrad adds noise of one size to whatever is asked, so points farther out see less of it: `stretch_against` says how
far out to ask, and `placed` what that is for points.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foldline.errors import BadFile, BadInput
from foldline.images import guessed_shape, roughness
from foldline.imitation.committee import weighted
from foldline.imitation.deep import FEWEST_LAYERS
from foldline.imitation.linear import only_linear
from foldline.randomness import Streams

LENGTH = 1.0                    # pixels: strokes and edges are a few pixels wide
NOISE = 0.5                     # of the rows' deviation
STRETCH = 0.5                   # for noise as rough as the rows: 1.5 for MNIST's deviation, 2.9 for CIFAR-10's
STRETCH_POWER = 4 / 3           # 15,000 for a thousand times that
FAR = 10.0                      # beyond, points are multiplied instead
MOST_SPREAD = 256               # rows that are picked by distance; where more are wanted, the rest is drawn
MOST_COMPARED = 10_000          # rows that they are picked from


def drawn_rows(x: Tensor, n: int, *, rng: torch.Generator) -> Tensor:
    """n different rows of x; the first ones of a longer draw with the same rng, so curves are nested."""
    if not 0 < n <= len(x):
        raise BadInput(f"{n} queries were wanted from {len(x)} rows: ask between 1 and {len(x)}.")
    return x[torch.randperm(len(x), generator=rng)[:n]]


def spread_rows(x: Tensor, n: int, *, rng: torch.Generator) -> Tensor:
    """n different rows of x, each drawn with probability proportional to its squared distance from those before it;
    nested. Reads only x: nothing is asked, no label is seen."""
    if not 0 < n <= len(x):
        raise BadInput(f"{n} queries were wanted from {len(x)} rows: ask between 1 and {len(x)}.")
    order = torch.randperm(len(x), generator=rng)
    some = x[order[:MOST_COMPARED]].float()                                     # (m, d)
    left = torch.ones(len(some), dtype=torch.float64)                           # first draw: any row
    apart = torch.full_like(left, torch.inf)
    picked: list[int] = []
    for _ in range(min(MOST_SPREAD, len(some))):
        if not float(left.sum()) > 0:                                           # only copies of picked rows are left
            break
        i = int(torch.multinomial(left, 1, generator=rng))
        picked.append(i)
        if len(picked) >= n:
            break
        apart = torch.minimum(apart, (some - some[i]).square().sum(1).double())
        left = apart
    chosen = torch.zeros(len(x), dtype=torch.bool)
    chosen[picked] = True
    rest = order[~chosen][:n - len(picked)]
    return torch.cat([x[order[torch.tensor(picked)]], x[rest]])


def gaussian_rows(n: int, dim: int, *, rng: torch.Generator, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """x ~ N(mean, std^2 I_d), float64; nested like drawn_rows."""
    if n < 1 or dim < 1:
        raise BadInput(f"Gaussian queries need at least one row and one input, not {n} and {dim}.")
    # Row by row: one large draw would not begin with the rows of a smaller one.
    return mean + std * torch.stack([torch.randn(dim, generator=rng, dtype=torch.float64) for _ in range(n)])


def smooth_rows(n: int, input_shape: tuple[int, ...], *, rng: torch.Generator, mean: float = 0.0, std: float = 1.0,
                length: float = LENGTH) -> Tensor:
    """n Gaussian fields of correlation length `length` (pixels), each pixel N(mean, std^2); flat, float64, nested.
    Images (H, W) or (H, W, C); one axis (d,) is smoothed along itself."""
    if n < 1 or not input_shape or min(input_shape) < 1 or not length > 0:
        raise BadInput(f"Smooth queries need at least one row, a shape and a positive length, not {n}, "
                       f"{tuple(input_shape)} and {length}.")
    H, W, C = input_shape if len(input_shape) == 3 else (*input_shape, 1) if len(input_shape) == 2 else \
        (1, int(np.prod(input_shape)), 1)
    reach = max(1, round(4 * length))
    t = torch.arange(-reach, reach + 1, dtype=torch.float64)
    kernel = torch.exp(-t.square() / (2 * length**2))
    kernel = kernel / kernel.norm()                                 # white noise of variance 1 keeps it
    up = reach if H > 1 else 0
    z = torch.stack([torch.randn(C, H + 2 * up, W + 2 * reach, generator=rng, dtype=torch.float64)
                     for _ in range(n)]).flatten(0, 1)[:, None]     # (n C, 1, .., ..)
    z = F.conv2d(z, kernel[None, None, None])
    if up:
        z = F.conv2d(z, kernel[None, None, :, None])
    return mean + std * z.reshape(n, C, H, W).permute(0, 2, 3, 1).reshape(n, -1)


def blended_rows(x: Tensor, n: int, *, rng: torch.Generator, input_shape: tuple[int, ...] | None = None,
                 noise: float = NOISE) -> Tensor:
    """(a + b) / 2 for n pairs of unlike rows of x, plus smooth noise of `noise` times their deviation; nested."""
    if not 0 < 2 * n <= len(x):
        raise BadInput(f"{n} blended queries need {2 * n} different rows, and there are {len(x)}.")
    # Each from its own stream, so that the draws of one do not depend on how many rows the other wanted.
    streams = Streams(rng)
    pairs = spread_rows(x, 2 * n, rng=streams("rows")).double()
    field = smooth_rows(n, input_shape or (x.shape[1],), rng=streams("noise"))
    return 0.5 * (pairs[0::2] + pairs[1::2]) + noise * float(x[:5000].double().std()) * field


def stretch_against(sigma: float, rows: Tensor, student: nn.Module,
                    input_shape: tuple[int, ...] | None = None) -> float:
    """How many times as far out points are best asked where SmoothGrad's noise has deviation sigma; small noise: 1.

    Noise is held against what neighbouring pixels differ by, since edges are what networks look at: noise of the
    pixels' own deviation is 2.2 times as rough as MNIST and 3.7 times as CIFAR-10, and a convolutional network then
    answers 95 % of the first right and 27 % of the second. A linear student needs none of it, its target's gradient is
    changed by no noise, and one of many layers has a target that knows nothing far out.
    """
    if only_linear(student) is not None or len(weighted(student)) >= FEWEST_LAYERS:
        return 1.0
    own = graininess(rows[:5000].double(), input_shape)
    return max(1.0, STRETCH * (sigma / own) ** STRETCH_POWER) if own > 0 else 1.0


def graininess(rows: Tensor, input_shape: tuple[int, ...] | None) -> float:
    """Deviation of the white noise whose neighbours differ as much as those of rows; of a table, its deviation."""
    shape = input_shape if input_shape is not None and len(input_shape) > 1 else guessed_shape(rows.shape[1], rows)
    if shape is None:
        return float(rows.std())
    return math.sqrt(roughness(rows, shape) * float(rows.square().mean()) / 2)


def placed(x: Tensor, rows: Tensor, stretch: float) -> tuple[Tensor, float]:
    """(points, scale of fl.imitate) for asking x `stretch` times as far out.

    Up to FAR the points themselves are moved away from the mean of rows. Beyond, a ReLU network is homogeneous but for
    its biases, f(t x) = t f_0(x): it is asked at t x, and the student is taught f(t x) / t at x.
    """
    if not 1 <= stretch < float("inf"):
        raise BadInput(f"Points can be stretched by 1 or more, not {stretch}.")
    if stretch == 1 or stretch > FAR:
        return x, stretch
    mean = rows.double().mean(0)
    return (mean + stretch * (x.double() - mean)).to(x), 1.0


def read_rows(path: str | Path, key: str | None = None) -> tuple[Tensor, Tensor | None]:
    """Rows (n, d) and, where the file has them, labels (n,), from .npy, .npz or .csv; bytes become [0, 1]."""
    path = Path(path)
    if not path.is_file():
        raise BadFile(f"There is no file {path} to take queries from.")
    try:
        if path.suffix == ".csv":
            x, y = np.loadtxt(path, delimiter=",", ndmin=2), None
        else:
            loaded = np.load(path, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                x, y = loaded, None
            else:
                names = [key] if key else [n for n in ("x", "inputs", "x_train", "x_test") if n in loaded.files]
                if not names or names[0] not in loaded.files:
                    raise BadFile(f"{path} holds {', '.join(loaded.files) or 'nothing'}; an array x was expected.")
                x = loaded[names[0]]
                label = names[0].replace("x", "y", 1)
                y = loaded[label] if label != names[0] and label in loaded.files else None
    except (ValueError, OSError, EOFError) as error:
        raise BadFile(f"{path} cannot be read as rows of numbers: {error}.") from error
    if x.ndim < 2 or len(x) == 0 or not (np.issubdtype(x.dtype, np.number)):
        raise BadFile(f"{path} holds an array of shape {x.shape} and type {x.dtype}; rows of numbers were expected.")
    rows = torch.from_numpy(np.ascontiguousarray(x)).reshape(len(x), -1)
    rows = rows.double() / 255 if x.dtype == np.uint8 else rows.double()
    return rows, None if y is None else torch.from_numpy(np.asarray(y).reshape(-1).astype(np.int64))
