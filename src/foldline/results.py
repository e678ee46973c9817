"""What every method returns: a status that advises, a certificate, where it came from, and plain JSON."""

from __future__ import annotations

import base64
import dataclasses
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from foldline import __version__

SCHEMA_VERSION = 1
INLINE_ELEMENTS = 20_000        # larger tensors go into JSON as base64 of their bytes, not as lists

Progress = Callable[[str, Mapping[str, float]], None]
"""progress(stage, numbers): how a method tells a live display where it is; never required."""


def silent(stage: str, numbers: Mapping[str, float]) -> None:
    """The progress callback of a caller who did not ask for one."""


@dataclass(frozen=True)
class Status:
    """`code` is a slug for programs, `message` a sentence with advice, `notes` what else the reader must know."""

    code: str
    message: str
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.code == "ok"

    @classmethod
    def of(cls, good: bool, *, code: str = "unverified", message: str = "The certificate does not hold.",
           notes: tuple[str, ...] = ()) -> Status:
        return cls("ok", "Done.", notes) if good else cls(code, message, notes)

    def __str__(self) -> str:
        return " ".join((f"{self.code}: {self.message}", *self.notes))


@dataclass(frozen=True)
class FunctionCertificate:
    """Residuals of a recovered function on fresh probes, and what they prove.

    With probability `confidence` over the probes, at most `fraction_bound` of `distribution` is off by more
    than `tolerance` (Clopper-Pearson).
    """

    worst: float
    mean: float
    probes: int
    tolerance: float
    off: int
    fraction_bound: float
    confidence: float
    distribution: str

    @property
    def holds(self) -> bool:
        return self.probes > 0 and self.off == 0

    @classmethod
    def of(cls, residuals: Tensor, *, tolerance: float, distribution: str,
           confidence: float = 0.95) -> FunctionCertificate:
        """residuals: (n,) or (n, k), any sign; a NaN counts as off."""
        r = residuals.detach().double().abs()
        r = r[:, None] if r.ndim == 1 else r.flatten(1)             # no rows asked: a certificate that does not hold
        worst_per_probe = r.max(1).values if r.numel() else r.new_zeros(0)      # (n,)
        n = len(worst_per_probe)
        off = int((~(worst_per_probe <= tolerance)).sum())
        return cls(worst=float(worst_per_probe.max()) if n else float("nan"),
                   mean=float(worst_per_probe.mean()) if n else float("nan"),
                   probes=n, tolerance=tolerance, off=off,
                   fraction_bound=fraction_upper_bound(off, n, confidence),
                   confidence=confidence, distribution=distribution)


def fraction_upper_bound(hits: int, n: int, confidence: float) -> float:
    """Clopper-Pearson: the largest fraction that still explains `hits` of `n` with probability 1 - confidence."""
    if hits >= n:
        return 1.0
    if hits == 0:
        return float(1.0 - (1.0 - confidence) ** (1.0 / n))
    from scipy.stats import beta
    return float(beta.ppf(confidence, hits + 1, n - hits))


@dataclass(frozen=True)
class Provenance:
    method: str
    seed: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    foldline: str = __version__
    torch_version: str = torch.__version__
    python: str = platform.python_version()
    machine: str = platform.machine()
    threads: int = field(default_factory=torch.get_num_threads)


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """Base of every method's result; subclasses are frozen dataclasses that add what was found."""

    status: Status
    queries: int
    certificate: Any
    provenance: Provenance

    def to_dict(self) -> dict[str, Any]:
        found = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"schema_version": SCHEMA_VERSION, "kind": type(self).__name__, **found}


def plain(value: Any) -> Any:
    """JSON-ready form of anything a result holds."""
    if isinstance(value, Tensor):
        return plain_tensor(value)
    if isinstance(value, torch.nn.Module):
        state = {k: plain_tensor(v) for k, v in value.state_dict().items()}
        return {"module": type(value).__name__, "state": state}
    if isinstance(value, Status):
        return {"ok": value.ok, **{f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "tolist"):                    # numpy scalars and arrays
        return plain(value.tolist())
    return str(value)


def plain_tensor(t: Tensor) -> Any:
    t = t.detach().cpu()
    if t.numel() <= INLINE_ELEMENTS:
        return plain(t.tolist())
    data = base64.b64encode(t.contiguous().numpy().tobytes()).decode()
    return {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "base64": data}
