"""Networks in and out of safetensors, with the architecture as JSON in the metadata; no pickle is ever loaded.

The tensors carry torch's own state-dict names, so other tools can read the file too. What a file may hold:
an nn.Sequential of the layers in layers.py, a Network (one hidden layer), or a preset by name and arguments.
"""

from __future__ import annotations

import copy
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foldline.errors import BadFile, BadInput, FoldlineError, Refused
from foldline.networks.layers import build_layers, describe_layers
from foldline.networks.mlp import MLP
from foldline.networks.one_hidden import Network

KEY = "foldline"                # the metadata entry that holds the architecture
FORMAT = 1
LINKS = ("identity", "sigmoid", "softmax")


def save(network: Any, path: str | Path, *, extra: Mapping[str, Any] | None = None) -> None:
    """Write `network` so that `load` gives it back bit for bit; `extra` is any JSON to keep beside it.

    An MLP is written as the nn.Sequential it equals. The file appears whole or not at all.
    """
    if isinstance(network, MLP):
        network = network.to_sequential()
    if not isinstance(network, nn.Module):
        raise BadInput(f"save writes torch modules and fl networks, not {type(network).__name__}.")
    described = describe(network)
    if extra:
        described["extra"] = dict(extra)
    state = {name: t.detach().cpu().contiguous().clone() for name, t in network.state_dict().items()}
    bad = not_finite(state)
    if bad:
        raise BadInput(f"The network was not written: its tensor {bad!r} holds NaN or infinity.")
    from safetensors.torch import save as to_bytes
    write_whole(Path(path), to_bytes(state, {KEY: json.dumps(described, allow_nan=False)}))


def load(path: str | Path, architecture: nn.Module | None = None) -> nn.Module:
    """The network in a safetensors file, in eval mode.

    A file that foldline did not write has no architecture in it: give a module of the right shape as
    `architecture` and a copy of it is filled.
    """
    path = Path(path)
    state, described = read(path)
    bad = not_finite(state)
    if bad:
        raise BadFile(f"{path} holds NaN or infinity in its tensor {bad!r}; a network needs finite weights.")
    if architecture is not None:
        return filled(copy.deepcopy(architecture), state, path).eval()
    if described is None:
        raise BadFile(f"{path} holds tensors but no architecture ({listing(state)}); give it, as fl.load(path, "
                      f"architecture=module) or weights:{path.name}@package.module:factory.")
    try:
        module = rebuild(described, state)
        module = module if isinstance(module, Network) else filled(module, state, path)
        for name in ("input_shape", "box"):
            value = described.get(name)
            if value is not None:
                setattr(module, name, tuple(value))
    except BadFile as error:
        raise (error if str(error).startswith(str(path)) else BadFile(f"{path} cannot be used: {error}.")) from error
    except FoldlineError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        raise BadFile(f"{path} describes an architecture that cannot be built: {error}.") from error
    return module.eval()


def read_extra(path: str | Path) -> dict[str, Any]:
    """What `save(..., extra=)` kept beside the network."""
    _, described = read(Path(path))
    extra = (described or {}).get("extra", {})
    return extra if isinstance(extra, dict) else {}


def describe(network: nn.Module) -> dict[str, Any]:
    """The architecture as JSON: kind, what that kind needs, and what the target says of its inputs."""
    common: dict[str, Any] = {"format": FORMAT}
    for name in ("input_shape", "box"):
        value = getattr(network, name, None)
        if isinstance(value, (tuple, list, torch.Size)):
            common[name] = list(value)
    if type(network) is Network:
        return {**common, "kind": "one-hidden", "link": network.link}
    preset = getattr(network, "preset", None)
    if type(network) is nn.Sequential:
        try:
            return {**common, "kind": "sequential", "layers": describe_layers(network)}
        except Refused:
            if not isinstance(preset, Mapping):
                raise
    if isinstance(preset, Mapping) and isinstance(preset.get("name"), str):
        return {**common, "kind": "preset", "name": preset["name"], "arguments": dict(preset.get("arguments", {}))}
    raise Refused(f"A {type(network).__name__} cannot be written as data: save takes an nn.Sequential, an fl.Network, "
                  f"an MLP or a preset. Its weights alone go out with safetensors.torch.save_file and come back "
                  f"with fl.load(path, architecture=module).")


def rebuild(described: Mapping[str, Any], state: Mapping[str, Tensor]) -> nn.Module:
    if described.get("format") != FORMAT:
        raise BadFile(f"its format is {described.get('format')!r}; this foldline reads format {FORMAT}")
    kind = described.get("kind")
    if kind == "sequential":
        return build_layers(described.get("layers"))
    if kind == "one-hidden":
        if set(state) != {"W", "b", "A", "P", "q"} or described.get("link") not in LINKS:
            raise BadFile("a one-hidden-layer network needs the tensors W, b, A, P, q and a link")
        return Network(state["W"], state["b"], state["A"], state["P"], state["q"], described["link"])
    if kind == "preset":
        from foldline.networks.presets import build
        arguments = described.get("arguments", {})
        if not isinstance(arguments, dict):
            raise BadFile("its preset's arguments are not a table")
        return build(str(described.get("name")), **arguments)
    raise BadFile(f"its architecture is of an unknown kind {kind!r}")


def filled(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> nn.Module:
    wanted = module.state_dict()
    missing, surplus = sorted(set(wanted) - set(state)), sorted(set(state) - set(wanted))
    if missing or surplus:
        raise BadFile(f"{path} does not fit its architecture: "
                      + "; ".join(f"{what} {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}"
                                  for what, names in (("missing", missing), ("not wanted", surplus)) if names) + ".")
    wrong = [f"{n} is {tuple(state[n].shape)} and should be {tuple(t.shape)}" for n, t in wanted.items()
             if state[n].shape != t.shape]
    if wrong:
        raise BadFile(f"{path} has tensors of the wrong shape: {'; '.join(wrong[:6])}.")
    module.load_state_dict(dict(state), assign=True)
    return module


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Tensors and architecture (None where the file has none)."""
    try:
        if not path.is_file():
            raise BadFile(f"There is no file {path}.")
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}.") from error
    # Eight bytes of header length, then a JSON table: nothing else is handed on.
    if len(start) > 8 and start[8:9] != b"{":
        what = "is a pickle or a zip of one" if start[:2] == b"PK" or start[:1] == b"\x80" else "is not safetensors"
        raise BadFile(f"{path} {what}, and foldline loads no pickles: write the weights with "
                      f"fl.save or safetensors.torch.save_file.")
    from safetensors import SafetensorError, safe_open
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}       # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise BadFile(f"{path} is truncated or not a safetensors file: {error}.") from error
    if KEY not in metadata:
        return state, None
    try:
        described = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} has an architecture that is not JSON: {error}.") from error
    if not isinstance(described, dict):
        raise BadFile(f"{path} has an architecture that is not a table.")
    return state, described


def not_finite(state: Mapping[str, Tensor]) -> str | None:
    for name, t in state.items():
        if t.is_floating_point() and t.numel() and not bool(t.isfinite().all()):
            return name
    return None


def listing(state: Mapping[str, Tensor], most: int = 8) -> str:
    parts = [f"{n} {tuple(t.shape)}" for n, t in list(state.items())[:most]]
    count = sum(math.prod(t.shape) for t in state.values())
    return ", ".join(parts) + (f" and {len(state) - most} more" if len(state) > most else "") + f"; {count:,} numbers"


def write_whole(path: Path, data: bytes) -> None:
    """A temporary file in the same folder, then a rename: a reader never sees half a file."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise BadFile(f"{path} cannot be written: {error.strerror}.") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
