"""Oracles on targets in this process: torch modules, callables, and the targets that strings name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from foldline.errors import BadAnswer, BadInput, TargetError
from foldline.oracles.ledger import Ledger
from foldline.oracles.protocols import Box, GradientOracle, Kind, LabelOracle, Source, ValueOracle
from foldline.oracles.shapes import conv_input_shape, declared_dim, evaluating, found_dim, tensors_of

if TYPE_CHECKING:
    from foldline.oracles.transcript import Run

VALUE_ROWS = 8192           # rows per forward pass: bounds memory, changes nothing else
GRADIENT_ROWS = 2048


def value_oracle(target: Any, budget: int | None = None, *, dim: int | None = None,
                 input_shape: tuple[int, ...] | None = None, box: Box | None = None,
                 ledger: Ledger | None = None, run: Path | str | Run | None = None) -> ValueOracle:
    """f(x) -> (n, k) outputs of a torch module, a callable, or a target string; `run` keeps the answers in a folder."""
    source = source_of(target, "values", dim=dim, input_shape=input_shape, box=box)
    return ValueOracle(kept(source, target, "values", run), ledger, budget=budget)


def gradient_oracle(target: Any, output: int = 0, budget: int | None = None, *, dim: int | None = None,
                    input_shape: tuple[int, ...] | None = None, box: Box | None = None,
                    ledger: Ledger | None = None, differences: float | None = None,
                    run: Path | str | Run | None = None) -> GradientOracle:
    """g(x) -> (y (n,), grad (n, d)). A callable may return that pair itself; otherwise torch differentiates it.

    `differences`: the step for targets that only answer values; each gradient is then billed as 2 d + 1 rows.
    """
    if differences is not None:
        from foldline.oracles.differences import Differences
        values = source_of(target, "values", dim=dim, input_shape=input_shape, box=box)
        source: Source = Differences(kept(values, target, "values", run), output, differences)
        return GradientOracle(source, ledger, budget=budget)
    source = source_of(target, "gradient", output=output, dim=dim, input_shape=input_shape, box=box)
    return GradientOracle(kept(source, target, f"gradient of output {output}", run), ledger, budget=budget)


def label_oracle(target: Any, budget: int | None = None, *, threshold: float = 0.0, dim: int | None = None,
                 input_shape: tuple[int, ...] | None = None, box: Box | None = None,
                 ledger: Ledger | None = None, run: Path | str | Run | None = None) -> LabelOracle:
    """lb(x) -> (n,) int64: the largest output, or with one output 1 where it is >= threshold."""
    source = source_of(target, "labels", threshold=threshold, dim=dim, input_shape=input_shape, box=box)
    return LabelOracle(kept(source, target, f"labels at threshold {threshold:g}", run), ledger, budget=budget)


def kept(source: Source, target: Any, stream: str, run: Path | str | Run | None) -> Source:
    """The source under the run folder's transcript, if there is one."""
    if run is None:
        return source
    from foldline.oracles.transcript import Transcript, identity_of, open_run
    run = open_run(run) if isinstance(run, (str, Path)) else run
    return Transcript(source, run, f"{stream} of {identity_of(target)}")


def source_of(target: Any, kind: Kind, *, output: int = 0, threshold: float = 0.0, dim: int | None = None,
              input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> Source:
    if isinstance(target, (str, Path)):
        from foldline.oracles.targets import open_target
        opened: Source = open_target(str(target), kind, output=output, threshold=threshold, dim=dim,
                                     input_shape=input_shape, box=box)
        return opened
    if not callable(target):
        raise BadInput(f"A target is a torch module, a callable or a target string, not {type(target).__name__}.")
    return LocalSource(target, kind, output=output, threshold=threshold, dim=dim, input_shape=input_shape, box=box)


class LocalSource:
    """A torch module or callable in this process. Rows are flat outside; the target sees its own shape and dtype.

    A target may bill or count what it is asked, so it meets no row before the user sends one: its dtype and
    width come from its own tensors, those it closes over, or from empty batches, which ask nothing.
    """

    def __init__(self, target: Callable[..., Any], kind: Kind, *, output: int = 0, threshold: float = 0.0,
                 dim: int | None = None, input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> None:
        self.target, self.kind, self.output, self.threshold = target, kind, output, threshold
        self.module = target if isinstance(target, nn.Module) else None
        tensor = next((t for t in tensors_of(target) if t.is_floating_point()), None)
        self.dtype = tensor.dtype if tensor is not None else torch.float64
        self.device = tensor.device if tensor is not None else torch.device("cpu")
        # What may write into the rows it is given gets a copy: the caller's queries, and their hashes, must stay.
        self._writes = self.module is None or any(getattr(m, "inplace", False) for m in self.module.modules())
        declared = input_shape or getattr(target, "input_shape", None)
        self.input_shape = tuple(declared) if declared else conv_input_shape(self.module) if self.module else None
        self.box = checked_box(box if box is not None else getattr(target, "box", None))
        if dim is not None and (dim != int(dim) or dim < 1):
            raise BadInput(f"dim is the number of inputs, one or more, not {dim!r}.")
        shaped = math.prod(self.input_shape) if self.input_shape else None
        if dim is not None and shaped is not None and dim != shaped:
            raise BadInput(f"dim={dim} was given, but an input of shape {self.input_shape} has {shaped} numbers.")
        self.dim: int = dim or shaped or declared_dim(target) or found_dim(self.accepts, target)
        self.outputs = self._declared_outputs()
        self._tried_empty = False
        if self.outputs is not None:
            self._check_output(self.outputs)

    @property
    def width(self) -> int | None:
        if self.kind != "values":
            return 1 + self.dim if self.kind == "gradient" else 1
        if self.outputs is None and not self._tried_empty:
            self._tried_empty = True
            self.outputs = self._count_outputs()
        return self.outputs

    def answer(self, x: Tensor) -> Tensor:
        rows = GRADIENT_ROWS if self.kind == "gradient" else VALUE_ROWS
        part = {"values": self._values, "gradient": self._gradients, "labels": self._labels}[self.kind]
        version = None if x.is_inference() else x._version
        with evaluating(self.module):
            blocks = [part(chunk) for chunk in torch.split(x, rows)]
        if version is not None and x._version != version:
            raise TargetError(f"The target wrote into the {len(x)} rows that it was given, so its answers belong to "
                              f"no known queries; wrap it in a function that copies its input first.")
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def accepts(self, d: int) -> bool:
        """Whether an empty batch of this width goes through; it asks no row."""
        try:
            with evaluating(self.module), torch.no_grad():
                self._forward(torch.zeros(0, d, dtype=self.dtype, device=self.device))
        except Exception:
            return False
        return True

    def _forward(self, x: Tensor) -> Any:
        x = x.clone() if self._writes else x
        return self.target(x.reshape(len(x), *self.input_shape) if self.input_shape else x)

    def _values(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self._forward(x.to(self.device, self.dtype))
            if isinstance(y, tuple) and len(y) == 2:                # a callable that answers (value, gradient)
                y = y[0]
            table = as_table(y, len(x))
            self._learn_outputs(table)
            return (table if table.is_floating_point() else table.to(self.dtype)).cpu()

    def _gradients(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            # A leaf of its own, whatever the caller's tensor is part of; torch refuses to write to it in place.
            leaf = x.to(self.device, self.dtype).detach().requires_grad_(True)
            y = self._forward(leaf)
            if isinstance(y, tuple) and len(y) == 2:
                value, grad = (as_table(t, len(x)).to(self.dtype) for t in y)
                return torch.cat([value[:, :1], grad], 1).detach().cpu()
            table = as_table(y, len(x))
            self._learn_outputs(table)
            column = table[:, self.output]                          # (n,)
            found: Tensor | None = None
            if column.requires_grad:                                # a constant function has no graph: gradient zero
                (found,) = torch.autograd.grad(column.sum(), leaf, allow_unused=True)
            elif not isinstance(y, Tensor):
                raise BadAnswer(f"The target answered a {type(y).__name__}, which torch cannot differentiate; a "
                                f"function may return (value, gradient) itself.")
        grad = torch.zeros_like(leaf) if found is None else found
        return torch.cat([column.detach()[:, None].to(self.dtype), grad], 1).cpu()

    def _labels(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self._forward(x.to(self.device, self.dtype))
            table = as_table(y, len(x))
            if not table.is_floating_point() and table.shape[1] == 1:
                return table.to(torch.int64).cpu()                  # it answers labels already
            labels = table.argmax(1) if table.shape[1] > 1 else (table[:, 0] >= self.threshold).to(torch.int64)
            if table.is_floating_point() and bool(table.isnan().any()):
                raise BadAnswer(f"The target answered NaN for {int(table.isnan().any(1).sum())} of {len(x)} rows.")
            return labels[:, None].cpu()

    def _declared_outputs(self) -> int | None:
        for name in ("out_features", "outputs"):
            declared = getattr(self.target, name, None)
            if isinstance(declared, int):
                return declared
        return self._count_outputs() if self.module is not None else None

    def _count_outputs(self) -> int | None:
        """From the shape of the answer to no rows, if the target gives one."""
        try:
            with evaluating(self.module), torch.no_grad():
                y = self._forward(torch.zeros(0, self.dim, dtype=self.dtype, device=self.device))
        except Exception:
            return None                                             # the first real batch will say what is wrong
        y = y[0] if isinstance(y, tuple) and len(y) == 2 else y
        if not hasattr(y, "shape") or len(y.shape) == 0 or y.shape[0] != 0:
            return None
        return int(math.prod(y.shape[1:]))

    def _learn_outputs(self, table: Tensor) -> None:
        if self.outputs is None:
            self.outputs = table.shape[1]
            self._check_output(self.outputs)

    def _check_output(self, outputs: int) -> None:
        if self.kind == "gradient" and not 0 <= self.output < outputs:
            raise BadInput(f"output={self.output} was asked for, but the target has {outputs} outputs.")


def checked_box(box: Any) -> Box | None:
    if box is None:
        return None
    try:
        low, high = (float(v) for v in box)
    except (TypeError, ValueError) as error:
        raise BadInput(f"A box is a pair (lowest, highest), not {box!r}.") from error
    if not low < high:
        raise BadInput(f"A box needs its lowest number below its highest, not ({low}, {high}).")
    return low, high


def as_table(y: Any, rows: int) -> Tensor:
    """(n,), (n, k) or (n, k, 1, 1) -> (n, k)"""
    if not isinstance(y, Tensor):
        try:
            y = torch.as_tensor(y)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadAnswer(f"The target answered a {type(y).__name__} where a tensor was expected.") from error
    if y.is_complex() or y.is_quantized:
        raise BadAnswer(f"The target answered {y.dtype}; real numbers or labels were expected.")
    if y.ndim == 0 or len(y) != rows:
        raise BadAnswer(f"The target answered shape {tuple(y.shape)} to {rows} rows; one answer per row was expected.")
    table: Tensor = y.reshape(rows, -1 if y.numel() else math.prod(y.shape[1:]))
    return table
