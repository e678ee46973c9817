"""`foldline reconstruct --public`: what other pictures of the kind teach, learnt once and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from foldline.cli.common import progress, say
from foldline.cli.reconstruct_known import Known
from foldline.errors import BadFile, BadInput
from foldline.images import guessed_shape
from foldline.randomness import Streams, generator
from foldline.reconstruction.separator import Separator, load_separator, save_separator, train_separator

FILE = "separator.safetensors"
NOTHING, STROKES = "none", "strokes"
DRAWN = 20_000          # pen strokes drawn to learn from, for pictures of other sizes than foldline knows them at


def check_public(public: str, module: nn.Module | None) -> None:
    """What would fail after minutes of learning fails now."""
    from foldline.reconstruction.weights import first_layer
    from foldline.victims.datasets import NAMES
    names = (*NAMES, STROKES, NOTHING)
    if public not in names and not Path(public).is_file():
        raise BadInput(f"--public is a file of images (.npy, .npz), what an earlier run kept (.safetensors) or one of "
                       f"{', '.join(names)}; there is no file {public}.")
    if module is not None:
        first_layer(module)


def separator_of(public: str, known: Known, seed: int, out: Path) -> Separator:
    """From a file that an earlier run kept, or taught by a data set's test images, the rows of a file or strokes."""
    if public.endswith(".safetensors"):
        return load_separator(public)
    if public == STROKES:
        return separator_of_strokes(known, seed, out)
    rows, shape = public_rows(public)
    shape = known.image_shape or shape or guessed_shape(rows.shape[1], rows[:100])
    if shape is None:
        raise BadInput(f"Rows of {rows.shape[1]} numbers are no square pictures; say --image-shape.")
    with progress("reconstruct") as show:
        separator = train_separator(rows, shape, rng=Streams(generator(seed))("public"), progress=show)
    return keep(separator, f"{len(rows)} public images", out)


def separator_of_strokes(known: Known, seed: int, out: Path) -> Separator:
    """What comes with foldline, or learnt from strokes drawn at another size."""
    if known.image_shape is None:
        raise BadInput("--public strokes needs to know the pictures' size; say --image-shape.")
    from foldline.reconstruction.strokes import known_strokes, pen_strokes
    there = known_strokes(known.image_shape)
    if there is not None:
        return there
    streams = Streams(generator(seed))
    rows = pen_strokes(DRAWN, known.image_shape, rng=streams("strokes"))
    with progress("reconstruct") as show:
        separator = train_separator(rows, known.image_shape, rng=streams("public"), drawn=True, progress=show)
    return keep(separator, f"{DRAWN} drawings of pen strokes", out)


def keep(separator: Separator, teachers: str, out: Path) -> Separator:
    save_separator(separator, out / FILE)
    say(f"{teachers} taught a network to take {separator.worth:.0%} of the error away from mixtures of such pictures; "
        f"it is kept: --public {out / FILE}", markup_safe=str(out / FILE))
    return separator


def public_rows(public: str) -> tuple[Tensor, tuple[int, ...] | None]:
    """(raw pixels (n, d), their shape where a data set is named). Victims are trained on a data set's other images."""
    from foldline.span.offline import read_arrays
    from foldline.victims.datasets import NAMES, load_dataset
    if public in NAMES:
        source = load_dataset(public)
        return source.x_test, source.image_shape
    path = Path(public)
    arrays = read_arrays(path)
    if len(arrays) != 1:
        raise BadFile(f"{path} holds {', '.join(arrays)}; --public takes one array of images.")
    array = next(iter(arrays.values()))
    if array.ndim < 2 or not np.issubdtype(array.dtype, np.number):
        raise BadFile(f"{path} must hold images, one to a row, not {array.dtype} {array.shape}.")
    scale = 255.0 if array.dtype == np.uint8 else 1.0
    return torch.from_numpy(array.reshape(len(array), -1).astype(np.float64)) / scale, None


def with_public_mean(known: Known, separator: Separator) -> Known:
    """Where the mean is not known that of the public images is the best guess."""
    if known.mean is not None or separator.drawn:
        return known
    say("The mean is not known: that of the public images takes its place; --mean replaces it.")
    return Known(separator.mean, known.box, separator.image_shape)
