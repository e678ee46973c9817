"""Where queries come from: rows at hand (the data distribution or another data set) or Gaussian noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BadFile, BadInput


def drawn_rows(x: Tensor, n: int, *, rng: torch.Generator) -> Tensor:
    """n different rows of x; the first ones of a longer draw with the same rng, so curves are nested."""
    if not 0 < n <= len(x):
        raise BadInput(f"{n} queries were wanted from {len(x)} rows: ask between 1 and {len(x)}.")
    return x[torch.randperm(len(x), generator=rng)[:n]]


def gaussian_rows(n: int, dim: int, *, rng: torch.Generator, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """x ~ N(mean, std^2 I_d), float64; nested like drawn_rows."""
    if n < 1 or dim < 1:
        raise BadInput(f"Gaussian queries need at least one row and one input, not {n} and {dim}.")
    # Row by row: one large draw would not begin with the rows of a smaller one.
    return mean + std * torch.stack([torch.randn(dim, generator=rng, dtype=torch.float64) for _ in range(n)])


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
