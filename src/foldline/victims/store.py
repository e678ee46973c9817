"""A victim as a folder: victim.safetensors and victim.json for everybody, owner.npz for its owner."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from foldline.errors import BadFile
from foldline.networks.files import load, save
from foldline.victims.datasets import Subset
from foldline.victims.owner import read_owner_file, subset_of, write_owner_file
from foldline.victims.train import Victim

WEIGHTS, ABOUT, OWNER, CHECKPOINT = "victim.safetensors", "victim.json", "owner.npz", "checkpoint.safetensors"


def write_victim(victim: Victim, folder: str | Path, *, report: dict[str, Any] | None = None) -> None:
    """`report` goes into victim.json as "kkt". The JSON is written last: a folder that has it is complete."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save(victim.module, folder / WEIGHTS, extra={"inputs": victim.info["inputs"],
                                                 "image_shape": victim.info["image_shape"]})
    whole = len(victim.data.x_unseen) == 0
    if not whole:                       # a victim trained on a whole public data set has no secret rows
        write_owner_file(victim, folder / OWNER)
    about = {**victim.info, **({"kkt": report} if report is not None else {})}
    part = folder / f".{ABOUT}.part"
    part.write_text(json.dumps(about, indent=1) + "\n")
    os.replace(part, folder / ABOUT)


def read_victim(folder: str | Path) -> Victim:
    """For judges and benchmarks: needs the owner's file where there is one."""
    folder = Path(folder)
    try:
        info = json.loads((folder / ABOUT).read_text())
        mean = torch.tensor(info["mean"], dtype=torch.float64)
        task = info["task"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{folder} is not a victim's folder ({error}); `foldline train` writes one.") from error
    module = load(folder / WEIGHTS)
    module.requires_grad_(False)
    if not (folder / OWNER).is_file():          # trained on a whole public data set: there are no rows to hide
        nothing, no_labels = torch.zeros(0, len(mean), dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        data = Subset(nothing, no_labels, nothing, no_labels, nothing, no_labels, tuple(info["image_shape"]), task)
        return Victim(module, info, data, mean)
    return Victim(module, info, subset_of(read_owner_file(folder / OWNER), task), mean)
