"""Model files of other tools as sources: ONNX graphs through onnxruntime, scikit-learn models through skops.

Both answer values and labels. Gradients they do not have; gradient_oracle(target, differences=step) makes them
from values and bills every one of those.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foldline.errors import BadAnswer, BadFile, Missing, Refused
from foldline.oracles.protocols import Box, Kind

ONNX_DTYPES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
NO_GRADIENTS = ("{what} answers values and labels, not gradients; gradient_oracle(target, differences=1e-4) takes "
                "differences of values instead, at 2 dim + 1 rows a gradient.")


class OnnxSource:
    """The first floating-point output is the answer; labels come from an integer output where there is one."""

    def __init__(self, path: Path, kind: Kind, *, threshold: float = 0.0, box: Box | None = None) -> None:
        if kind == "gradient":
            raise Refused(NO_GRADIENTS.format(what="An ONNX file"))
        session = onnx_session(path)
        inputs = session.get_inputs()
        if len(inputs) != 1:
            raise Refused(f"{path} has {len(inputs)} inputs; a target has one.")
        self.session, self.kind, self.threshold, self.box = session, kind, threshold, box
        self.input_name = inputs[0].name
        shape = inputs[0].shape or ["n"]
        if inputs[0].type not in ONNX_DTYPES or len(shape) < 2 or not all(isinstance(s, int) for s in shape[1:]):
            raise Refused(f"{path} takes {inputs[0].type} of shape {shape}; a floating-point batch of rows of one "
                          f"fixed shape is needed.")
        self.dtype = ONNX_DTYPES[inputs[0].type]
        self.row_shape = tuple(int(s) for s in shape[1:])
        self.dim = math.prod(self.row_shape)
        # Some exporters freeze the batch: then rows go in groups of that size.
        self.rows_at_once = shape[0] if isinstance(shape[0], int) else None
        outputs = session.get_outputs()
        floating = [o for o in outputs if o.type in ONNX_DTYPES]
        integer = [o for o in outputs if o.type in ("tensor(int64)", "tensor(int32)")]
        if not floating and not (kind == "labels" and integer):
            raise Refused(f"{path} has no floating-point output; it has {', '.join(o.type for o in outputs)}.")
        self.answers_labels = kind == "labels" and bool(integer)
        chosen = integer[0] if self.answers_labels else floating[0]
        self.output_name = chosen.name
        if kind == "labels":
            self.width = 1
        elif len(chosen.shape or []) >= 2 and all(isinstance(s, int) for s in chosen.shape[1:]):
            self.width = math.prod(chosen.shape[1:])
        else:
            self.width = 1 if len(chosen.shape or []) == 1 else self._run(np.zeros((1, self.dim))).shape[1]

    def answer(self, x: Tensor) -> Tensor:
        y = torch.from_numpy(self._run(x.detach().cpu().numpy()))
        if self.kind == "values":
            return y
        if self.answers_labels:
            return y[:, :1].to(torch.int64)
        return labels_of(y, self.threshold)

    def _run(self, x: Any) -> Any:
        n = len(x)
        batch = x.astype(str(self.dtype).removeprefix("torch.")).reshape(n, *self.row_shape)
        step = self.rows_at_once or n
        parts = []
        for start in range(0, n, step):
            part = batch[start:start + step]
            short = step - len(part)
            padded = np.concatenate([part, np.repeat(part[-1:], short, 0)]) if short else part
            y = np.asarray(self.session.run([self.output_name], {self.input_name: padded})[0])
            if y.ndim == 0 or len(y) != step:
                raise BadAnswer(f"The ONNX graph answered shape {y.shape} to {step} rows.")
            parts.append(y.reshape(step, -1)[:len(part)])
        return np.concatenate(parts)


def onnx_session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise Missing("ONNX targets need onnxruntime: pip install 'foldline[onnx]'.") from error
    if not path.is_file():
        raise BadFile(f"There is no file {path}.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:                      # onnxruntime raises a dozen unrelated classes here
        raise BadFile(f"{path} is not an ONNX model that onnxruntime can open: {error}.") from error


class SklearnSource:
    """predict_proba where the model has it, else decision_function, else predict; labels are indices into classes_."""

    def __init__(self, path: Path, kind: Kind, *, threshold: float = 0.0, box: Box | None = None) -> None:
        if kind == "gradient":
            raise Refused(NO_GRADIENTS.format(what="A scikit-learn model"))
        self.model, self.kind, self.threshold, self.box = sklearn_model(path), kind, threshold, box
        self.dtype = torch.float64
        self.dim = int(getattr(self.model, "n_features_in_", 0))
        if not self.dim:
            raise Refused(f"{path} holds a {type(self.model).__name__} that was not fitted: its inputs are unknown.")
        self.classes = getattr(self.model, "classes_", None)
        self.call = next((getattr(self.model, name) for name in ("predict_proba", "decision_function", "predict")
                          if hasattr(self.model, name)), None)
        if self.call is None:
            raise Refused(f"{path} holds a {type(self.model).__name__}, which predicts nothing.")
        self.width = 1 if kind == "labels" else self._values(np.zeros((1, self.dim))).shape[1]

    def answer(self, x: Tensor) -> Tensor:
        rows = x.detach().cpu().double().numpy()
        if self.kind == "values":
            return torch.from_numpy(self._values(rows))
        if self.classes is None:
            return labels_of(torch.from_numpy(self._values(rows)), self.threshold)
        names = np.asarray(self.model.predict(rows))
        order = np.argsort(self.classes, kind="stable")
        labels = order[np.searchsorted(self.classes, names, sorter=order)]
        return torch.from_numpy(labels.astype(np.int64))[:, None]

    def _values(self, rows: Any) -> Any:
        y = self.call(rows) if self.call is not None else None
        if isinstance(y, list):                                         # one table per output
            y = np.concatenate(y, axis=1)
        return np.asarray(y, dtype=np.float64).reshape(len(rows), -1)


def sklearn_model(path: Path) -> Any:
    """A skops file, if every type in it is scikit-learn's own class (or one that skops itself trusts)."""
    try:
        from skops.io import get_untrusted_types, load
    except ImportError as error:
        raise Missing("scikit-learn targets need skops: pip install 'foldline[skops]'.") from error
    if not path.is_file():
        raise BadFile(f"There is no file {path}.")
    with path.open("rb") as file:
        start = file.read(2)
    if start != b"PK":
        raise BadFile(f"{path} is not a skops file; foldline loads no pickles. Write one with skops.io.dump.")
    try:
        unknown = get_untrusted_types(file=path)
        foreign = [name for name in unknown if not sklearn_class(name)]
        if foreign:
            raise Refused(f"{path} holds types that are not scikit-learn's own, and loading them could run code: "
                          f"{', '.join(foreign[:6])}. Nothing was loaded.")
        return load(path, trusted=unknown)
    except Refused:
        raise
    except Exception as error:                      # a broken zip, a broken schema: skops raises what its parsers raise
        raise BadFile(f"{path} cannot be read as a skops file: {type(error).__name__}: {error}.") from error


def sklearn_class(name: str) -> bool:
    """A class that lives in scikit-learn; functions are not trusted, whatever their home."""
    if not name.startswith("sklearn.") or ".tests." in name or "externals" in name:
        return False
    import importlib
    module, _, attribute = name.rpartition(".")
    try:
        return isinstance(getattr(importlib.import_module(module), attribute, None), type)
    except ImportError:
        return False


def labels_of(y: Tensor, threshold: float) -> Tensor:
    """(n, k) values -> (n, 1) int64"""
    labels = y.argmax(1) if y.shape[1] > 1 else (y[:, 0] >= threshold).to(torch.int64)
    return labels[:, None]
