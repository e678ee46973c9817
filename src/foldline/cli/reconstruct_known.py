"""What `foldline reconstruct` is told, or finds published, about the pixels: mean, range and shape."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foldline.cli.common import say
from foldline.errors import BadFile, BadInput


@dataclass(frozen=True, eq=False)
class Known:
    mean: Tensor | float | None
    box: tuple[float, float] | None
    image_shape: tuple[int, ...] | None

    def options(self) -> dict[str, Any]:
        return {"mean": self.mean, "box": self.box, "image_shape": self.image_shape}

    def pixels(self, samples: Tensor) -> Tensor:
        """Rows with the mean put back, where it is known."""
        return samples if self.mean is None else samples + self.mean

    @property
    def shown_in(self) -> tuple[float, float] | None:
        """The range pictures are drawn in; centred rows of unknown mean have none."""
        return self.box if self.mean is not None else None


def known_of(target: str, mean: str | None, box: tuple[float, float] | None, image_shape: str | None) -> Known:
    """From the options, and else from the public victim.json beside the weights. Never from owner.npz."""
    about, path = published(target)
    shape = None if image_shape is None else read_shape(image_shape)
    if shape is None and isinstance(about.get("image_shape"), list):
        shape = tuple(int(v) for v in about["image_shape"])
    if mean is not None:
        return Known(read_mean(mean), box, shape)
    listed = about.get("mean")
    if isinstance(listed, list) and listed:
        row = torch.tensor(listed, dtype=torch.float64)
        what = "zero" if not bool(row.any()) else f"{len(row)} numbers"
        say(f"The mean ({what}) and the image shape come from {path}, which is public; --mean replaces it.",
            markup_safe=str(path))
        return Known(row, box, shape)
    return Known(None, box, shape)


def published(target: str) -> tuple[dict[str, Any], Path]:
    from foldline.oracles.targets import parse_target
    scheme, rest = parse_target(target)
    path = Path(rest.partition("@")[0]).parent / "victim.json"
    if scheme != "weights" or not path.is_file():
        return {}, path
    try:
        about = json.loads(path.read_text())
        return (about if isinstance(about, dict) else {}), path
    except (OSError, ValueError) as error:
        raise BadFile(f"{path} cannot be read ({error}); give --mean and --image-shape, or move it away.") from error


def read_shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+([x, ]\d+){1,2}", text.strip()):
        raise BadInput(f"--image-shape is written 28x28, 32x32x3 or 3x32x32, not {text!r}.")
    return tuple(int(v) for v in re.split(r"[x, ]", text.strip()))


def read_mean(text: str) -> Tensor | float:
    try:
        return float(text)
    except ValueError:
        pass
    from foldline.span.offline import read_rows
    if not Path(text).is_file():
        raise BadInput(f"--mean is a number or a file with one row of numbers; there is no file {text}.")
    return read_rows(Path(text)).double().reshape(-1)
