"""What only the owner of a victim knows: its training rows, and as many unseen ones, in a file of mode 0600.

The judge reads it; no attack does.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BadFile
from foldline.victims.datasets import Subset
from foldline.victims.train import Victim

FIELDS = ("x_train", "y_train", "x_unseen", "y_unseen", "mean", "image_shape")


def write_owner_file(victim: Victim, path: str | Path) -> None:
    """npz without pickle: rows in [0, 1] as float64, the mean that the network's inputs are centred by."""
    path, data = Path(path), victim.data
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)
    # Created with its mode, so that it is never readable by others, not even for a moment.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        np.savez_compressed(file, x_train=data.x.numpy(), y_train=data.y.numpy(), x_unseen=data.x_unseen.numpy(),
                            y_unseen=data.y_unseen.numpy(), mean=victim.mean.numpy(),
                            image_shape=np.array(data.image_shape))
    os.replace(temporary, path)


def read_owner_file(path: str | Path) -> dict[str, Tensor]:
    """The six arrays of FIELDS as tensors."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as z:
            found = {name: torch.from_numpy(z[name]) for name in FIELDS}
    except FileNotFoundError as error:
        raise BadFile(f"There is no owner file {path}.") from error
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise BadFile(f"{path} is not an owner file ({error}); `foldline train` writes one as owner.npz.") from error
    n, d = found["x_train"].shape if found["x_train"].ndim == 2 else (0, -1)
    if found["y_train"].shape != (n,) or found["mean"].shape != (d,) or found["x_unseen"].shape[1:] != (d,):
        raise BadFile(f"{path} is not an owner file: its arrays do not fit together.")
    return found


def subset_of(owner: Mapping[str, Tensor], task: str) -> Subset:
    """The owner file's rows as the Subset they were, without the test set (the data set has it)."""
    d = owner["x_train"].shape[1]
    return Subset(owner["x_train"], owner["y_train"], owner["x_unseen"], owner["y_unseen"],
                  torch.zeros(0, d, dtype=torch.float64), torch.zeros(0, dtype=torch.int64),
                  tuple(owner["image_shape"].tolist()), "binary" if task == "binary" else "ten")
