"""foldline: what a neural network gives away, to queries, to explanations, and out of its weights.

Names are loaded when first used, so `import foldline` costs nothing until there is work to do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "value_oracle": "oracles.local",
    "gradient_oracle": "oracles.local",
    "label_oracle": "oracles.local",
    "ValueOracle": "oracles.protocols",
    "GradientOracle": "oracles.protocols",
    "LabelOracle": "oracles.protocols",
    "probe": "oracles.probe",
    "generator": "randomness",
    "Status": "results",
    "recover_affine": "extract.affine",
    "extract_from_gradients": "extract.gradients",
    "extract_from_values": "extract.values",
    "learn_from_queries": "extract.learn",
    "recover_span": "span.gradients",
    "recover_span_from_labels": "span.labels",
    "obfuscate": "span.obfuscate",
    "imitate": "imitation.match",
    "reconstruct": "reconstruction.weights",
    "reconstruct_from_span": "reconstruction.black_box",
    "invert": "reconstruction.inversion",
    "score_reconstruction": "judge.reconstruction",
    "audit": "auditing.run",
    "load": "networks.files",
    "save": "networks.files",
    "Network": "networks.one_hidden",
}

__all__ = ["__version__", "errors", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("foldline.errors")
    if name in _HOME:
        value = getattr(import_module(f"foldline.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'foldline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
