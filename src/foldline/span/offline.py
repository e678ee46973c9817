"""Algorithm 1 without a line to the target: list the points, have them asked elsewhere, read the answers back.

The points depend on nothing but the seed, so they can be written down before the first query. Gradients: n rows,
answered by (value, gradient). Values: for each of n Gaussian points the point itself, one step along every input and
a few checks, n (d + 1 + CHECKS) rows; the step is fixed beforehand and points whose checks fail are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BadFile, BadInput
from foldline.oracles.protocols import Box, GradientOracle, Kind
from foldline.randomness import Streams
from foldline.span.gradients import recover_span
from foldline.span.points import gaussian_points
from foldline.span.result import SpanResult

CHECKS = 4
STEP = 1e-4

Asked = Literal["gradients", "values"]


def list_points(n: int, d: int, *, rng: torch.Generator, kind: Asked = "gradients", step: float = STEP,
                box: Box | None = None) -> Tensor:
    """The rows to ask, in order."""
    streams = Streams(rng)
    x = gaussian_points(n, d, rng=streams("points"), box=box)                       # (n, d)
    if kind == "gradients":
        return x
    if box is not None:
        x = box[0] + step + (x - box[0]) * (1 - 2 * step / (box[1] - box[0]))       # room for the steps
    u = torch.randn(n, CHECKS, d, generator=streams("checks"), dtype=torch.float64)
    u = step * u / u.norm(dim=2, keepdim=True)
    E = step * torch.eye(d, dtype=torch.float64).expand(n, d, d)
    return (x[:, None] + torch.cat([torch.zeros(n, 1, d, dtype=torch.float64), E, u], 1)).reshape(-1, d)


def span_from_answers(points: Tensor, answers: Tensor, *, kind: Asked = "gradients", step: float = STEP) -> SpanResult:
    """points as `list_points` made them, answers (rows, 1 + d) for gradients or (rows, k) for values."""
    rng = torch.Generator().manual_seed(0)                                          # nothing is drawn: points are given
    points, answers = points.double(), answers.double().reshape(len(answers), -1)
    rows, d = points.shape
    if len(answers) != rows:
        raise BadInput(f"{rows} points were listed, but {len(answers)} answers came back.")
    if not bool(answers.isfinite().all()):
        raise BadInput("The answers contain NaN or infinite numbers.")
    if kind == "gradients":
        if answers.shape[1] == d:
            answers = torch.cat([torch.zeros(rows, 1, dtype=torch.float64), answers], 1)    # gradients alone do too
        if answers.shape[1] != 1 + d:
            raise BadInput(f"Answers need {1 + d} columns (the value, then the gradient), not {answers.shape[1]}.")
        return recover_span(Table(answers, d).oracle(), rng=rng, method="gaussian", points=points)
    per = 1 + d + CHECKS
    if rows % per:
        raise BadInput(f"Values are listed {per} rows to a point (1 + {d} + {CHECKS}), but {rows} rows came back.")
    x = points.reshape(-1, per, d)[:, 0]                                            # (n, d)
    y = answers.reshape(-1, per, answers.shape[1])                                  # (n, per, k)
    moved = (points.reshape(-1, per, d) - x[:, None])                               # (n, per, d)
    along = moved[:, 1:d + 1].diagonal(dim1=1, dim2=2)                              # (n, d) the steps as rounded
    J = (y[:, 1:d + 1] - y[:, :1]) / along[:, :, None]                              # (n, d, k)
    rounding = 64 * torch.finfo(torch.float64).eps * y.abs().amax((0, 1))           # (k,)
    off = (y[:, d + 1:] - y[:, :1] - torch.einsum("ncd,ndk->nck", moved[:, d + 1:], J)).abs()
    straight = (off <= 16 * rounding).all(1)                                        # (n, k)
    kept = torch.nonzero(straight)                                                  # (m, 2)
    if len(kept) == 0:
        raise BadInput(f"No point passed its checks: the step {step:g} is too long for this target, or the answers "
                       f"are rounded. List points with another step.")
    grads = J[kept[:, 0], :, kept[:, 1]]                                            # (m, d)
    table = torch.cat([y[kept[:, 0], 0, kept[:, 1]][:, None], grads], 1)
    size = grads.norm(dim=1)
    noise = float((rounding.max() / step * d ** 0.5 / size[size > 0]).median()) if bool((size > 0).any()) else None
    return recover_span(Table(table, d).oracle(), rng=rng, method="gaussian", points=x[kept[:, 0]], noise=noise)


class Table:
    """Answers that are already there, handed out in order."""

    kind: Kind = "gradient"
    box: Box | None = None
    dtype = torch.float64

    def __init__(self, answers: Tensor, d: int) -> None:
        self.answers, self.dim, self.width = answers, d, 1 + d

    def answer(self, x: Tensor) -> Tensor:
        return self.answers[:len(x)]

    def oracle(self) -> GradientOracle:
        return GradientOracle(self)


def write_points(path: Path, points: Tensor, *, kind: Asked, step: float) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, points=points.numpy(), kind=np.array(kind), step=np.array(step))


def read_points(path: Path) -> tuple[Tensor, Asked, float]:
    archive = read_arrays(path)
    if not {"points", "kind", "step"} <= set(archive):
        raise BadFile(f"{path} was not written by --list: it has no points, kind and step.")
    return torch.as_tensor(archive["points"]), str(archive["kind"]), float(archive["step"])  # type: ignore[return-value]


def read_rows(path: Path) -> Tensor:
    """A table of numbers: .npy, the only or the `answers` array of an .npz, or .csv."""
    archive = read_arrays(path)
    name = "answers" if "answers" in archive else next(iter(archive)) if len(archive) == 1 else None
    if name is None:
        raise BadFile(f"{path} holds {', '.join(archive)}: which of them are the answers? Name the array 'answers'.")
    try:
        table = torch.as_tensor(archive[name].astype(np.float64))
    except (TypeError, ValueError) as error:
        raise BadFile(f"{path} does not hold numbers.") from error
    return table.reshape(len(table), -1) if table.ndim > 1 else table[:, None]


def read_arrays(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".csv":
            return {"answers": np.loadtxt(path, delimiter=",", ndmin=2)}
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise BadFile(f"There is no file {path}.") from error
    except (OSError, ValueError) as error:
        raise BadFile(f"{path} cannot be read as .npy, .npz or .csv: {error}") from error
    return {name: loaded[name] for name in loaded.files} if isinstance(loaded, np.lib.npyio.NpzFile) \
        else {"answers": loaded}
