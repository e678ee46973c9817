"""A training run on disk: parameters, optimiser state and step in one safetensors file, replaced atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from foldline.errors import BadFile


def save_checkpoint(path: Path, module: nn.Module, optimiser: torch.optim.Optimizer | None, step: int,
                    fingerprint: str) -> None:
    tensors = {f"module/{k}": v for k, v in module.state_dict().items()}
    for i, slots in (optimiser.state_dict()["state"] if optimiser is not None else {}).items():
        tensors |= {f"optimiser/{i}/{k}": v for k, v in slots.items() if isinstance(v, Tensor)}
    temporary = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Copies, since safetensors refuses tensors that share memory.
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, temporary,
              metadata={"foldline": json.dumps({"step": step, "fingerprint": fingerprint})})
    os.replace(temporary, path)


def load_checkpoint(path: Path, module: nn.Module, optimiser: torch.optim.Optimizer | None,
                    fingerprint: str) -> int:
    """The step to go on from; 0 where there is no checkpoint. A checkpoint of another run is an error."""
    if not path.is_file():
        return 0
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {}).get("foldline", "{}"))
            tensors = {k: file.get_tensor(k) for k in file.keys()}      # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise BadFile(f"The checkpoint {path} cannot be read ({error}); delete it to start again.") from error
    if about.get("fingerprint") != fingerprint:
        raise BadFile(f"The checkpoint {path} belongs to another run (recipe, data, seed or code differ); "
                      f"delete it, or write to another folder.")
    module.load_state_dict({k.removeprefix("module/"): v for k, v in tensors.items() if k.startswith("module/")})
    if optimiser is not None:
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimiser/"):
                _, i, slot = key.split("/")
                state.setdefault(int(i), {})[slot] = value
        optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    return int(about["step"])
