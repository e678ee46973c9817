"""What is attacked: a model behind some access, and apart from it what only its owner knows.

A stage gets oracles from `Subject.open`; `owner` is read by the judge when the attack is over, never before.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from foldline.auditing.spec import Access, AuditFile
from foldline.errors import BadFile, BadSpec, FoldlineError, NotAuthorised
from foldline.oracles.protocols import Box, Kind, Source

KINDS: dict[str, Kind] = {"values": "values", "gradients": "gradient", "labels": "labels"}
ROW_NAMES = ("x", "x_train", "x_unseen", "rows")
LABEL_NAMES = ("y_train", "y", "labels")


@dataclass(frozen=True, eq=False)
class Known:
    """What an attacker may know beforehand."""

    image_shape: tuple[int, ...] | None = None
    mean: float | Tensor | None = None
    box: Box = (0.0, 1.0)
    inputs: Tensor | None = None        # (n, d) inputs of the kind the model was made for


@dataclass(frozen=True, eq=False)
class Owner:
    """For scoring: the training rows, as many unseen ones, and labelled inputs for what honest users see."""

    train: Tensor                       # (n, d) float64, in the coordinates of the queries
    unseen: Tensor
    test: Tensor | None = None
    test_labels: Tensor | None = None
    train_labels: Tensor | None = None  # (n,) int64, to train anew
    mean: Tensor | None = None          # (d,) what the network subtracts from its inputs, where it does


@dataclass(frozen=True, eq=False)
class Subject:
    name: str
    address: str                        # as the report shows it: no secrets, no port that changes
    access: tuple[Access, ...]
    open: Callable[[Kind], Source]
    known: Known = field(default_factory=Known)
    owner: Owner | None = None
    module: nn.Module | None = None     # only where the access includes the weights, or the owner tries defences
    facts: dict[str, str] = field(default_factory=dict)
    price: float = 0.0


def subject_of(audit: AuditFile) -> Subject:
    """The audit file's own target."""
    from foldline.oracles.targets import open_target, parse_target, target_module
    scheme, _ = parse_target(audit.target)
    reference = audit.reference

    def opened(kind: Kind) -> Source:
        # Values have no threshold, and an API that decides its labels itself refuses one.
        threshold = audit.threshold if kind == "labels" else 0.0
        return open_target(audit.target, kind, output=audit.output, threshold=threshold)

    remote = scheme in ("http", "https")
    module = None if remote or scheme in ("onnx", "sklearn") else target_module(audit.target)
    possible: list[Access] = []
    price = audit.price_per_query or 0.0
    dim: int | None = None
    refusals = []
    for name in ("values", "gradients", "labels"):
        try:
            source = opened(KINDS[name])
        except (FoldlineError, ValueError) as error:
            unreachable = isinstance(error, NotAuthorised) or getattr(error, "exit_code", 0) == 3
            if unreachable or (audit.access is not None and name in audit.access):
                raise
            refusals.append(str(error))
            continue
        dim, price = source.dim, audit.price_per_query or float(getattr(source, "price_per_query", 0.0))
        possible.append(name)
    if dim is None:
        raise BadSpec(f"The target {audit.target} answers nothing that can be asked: {' '.join(refusals)}")
    if module is not None:
        possible.append("weights")
    if audit.access is not None:
        for name in audit.access:
            if name not in possible:
                raise BadSpec(f"access names {name}, which the target {audit.target} does not give.")
    access = tuple(a for a in possible if audit.access is None or a in audit.access)
    inputs = None if reference.inputs is None else read_rows(reference.inputs, dim)
    owner = None
    if reference.train is not None and reference.unseen is not None:
        train = read_rows(reference.train, dim, ("x_train", *ROW_NAMES))
        owner = Owner(train, read_rows(reference.unseen, dim, ("x_unseen", *ROW_NAMES)), test=inputs,
                      train_labels=read_labels(reference.train, len(train)))
    mean: float | Tensor | None = None if isinstance(reference.mean, str) else reference.mean
    if reference.mean == "inputs" and inputs is not None:
        mean = inputs.mean(0)
    known = Known(reference.image_shape, mean, reference.box, inputs)
    return Subject(audit.name, audit.target, access, opened, known, owner, module,
                   facts={"inputs": str(dim)}, price=price)


def local(module: nn.Module, kind: Kind, audit: AuditFile, box: Box | None = None) -> Source:
    """A module in this process, asked for what the audit file asks the target for."""
    from foldline.oracles.local import source_of
    threshold = audit.threshold if kind == "labels" else 0.0
    return source_of(module, kind, output=audit.output, threshold=threshold, box=box)


def read_rows(path: Path, dim: int, names: tuple[str, ...] = ROW_NAMES) -> Tensor:
    """(n, d) float64 out of an npz or safetensors file: the array of the first of `names` it has, or its only one."""
    arrays = read_arrays(path)
    found = next((arrays[n] for n in names if n in arrays), next(iter(arrays.values())) if len(arrays) == 1 else None)
    if found is None:
        raise BadFile(f"{path} has the arrays {', '.join(arrays)}; rows are expected under x.")
    x = found.double().reshape(len(found), -1) if found.ndim >= 2 else found.double().reshape(0, 0)
    if x.shape[1] != dim or not len(x):
        raise BadFile(f"{path} holds an array of shape {tuple(found.shape)}; the target takes rows of {dim} numbers.")
    if not x.isfinite().all():
        raise BadFile(f"{path} holds NaN or infinite numbers.")
    return x / 255.0 if found.dtype == torch.uint8 else x


def read_labels(path: Path, n: int) -> Tensor | None:
    """(n,) int64 beside the rows of the same file, if it has any."""
    arrays = read_arrays(path)
    found = next((arrays[name] for name in LABEL_NAMES if name in arrays), None)
    if found is None:
        return None
    labels = found.long()
    if found.shape != (n,) or not bool((labels == found).all()):
        raise BadFile(f"{path} holds {n} rows; their labels must be {n} whole numbers, not an array of shape "
                      f"{tuple(found.shape)} and type {str(found.dtype).removeprefix('torch.')}.")
    return labels


def read_arrays(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file
            return dict(load_file(path))
        with np.load(path, allow_pickle=False) as z:
            return {k: torch.from_numpy(z[k]) for k in z.files}
    except FileNotFoundError as error:
        raise BadFile(f"There is no file {path}.") from error
    except (OSError, ValueError, zipfile.BadZipFile, RuntimeError) as error:
        raise BadFile(f"{path} cannot be read as npz or safetensors: {error}.") from error
