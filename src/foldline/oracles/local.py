"""Oracles on targets in this process: torch modules, callables, and the targets that strings name."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from foldline.errors import BadAnswer, BadInput
from foldline.oracles.ledger import Ledger
from foldline.oracles.protocols import Box, GradientOracle, Kind, LabelOracle, ValueOracle

VALUE_ROWS = 8192           # rows per forward pass: bounds memory, changes nothing else
GRADIENT_ROWS = 2048
SQUARE_SIDES = (28, 32, 8, 16, 64, 96, 128, 224)    # tried, in order, for conv nets that do not say their input shape


def value_oracle(target: Any, budget: int | None = None, *, dim: int | None = None,
                 input_shape: tuple[int, ...] | None = None, box: Box | None = None,
                 ledger: Ledger | None = None) -> ValueOracle:
    """f(x) -> (n, k) outputs of a torch module, a callable, or a target string."""
    return ValueOracle(source_of(target, "values", dim=dim, input_shape=input_shape, box=box),
                       ledger, budget=budget)


def gradient_oracle(target: Any, output: int = 0, budget: int | None = None, *, dim: int | None = None,
                    input_shape: tuple[int, ...] | None = None, box: Box | None = None,
                    ledger: Ledger | None = None) -> GradientOracle:
    """g(x) -> (y (n,), grad (n, d)). A callable may return that pair itself; otherwise torch differentiates it."""
    return GradientOracle(source_of(target, "gradient", output=output, dim=dim, input_shape=input_shape, box=box),
                          ledger, budget=budget)


def label_oracle(target: Any, budget: int | None = None, *, threshold: float = 0.0, dim: int | None = None,
                 input_shape: tuple[int, ...] | None = None, box: Box | None = None,
                 ledger: Ledger | None = None) -> LabelOracle:
    """lb(x) -> (n,) int64: the largest output, or with one output 1 where it is >= threshold."""
    return LabelOracle(source_of(target, "labels", threshold=threshold, dim=dim, input_shape=input_shape, box=box),
                       ledger, budget=budget)


def source_of(target: Any, kind: Kind, *, output: int = 0, threshold: float = 0.0, dim: int | None = None,
              input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> Any:
    if isinstance(target, str):
        from foldline.oracles.targets import open_target
        return open_target(target, kind, output=output, threshold=threshold, dim=dim, input_shape=input_shape, box=box)
    if not callable(target):
        raise BadInput(f"A target is a torch module, a callable or a target string, not {type(target).__name__}.")
    return LocalSource(target, kind, output=output, threshold=threshold, dim=dim, input_shape=input_shape, box=box)


class LocalSource:
    """A torch module or callable in this process. Rows are flat outside; the module sees its own shape and dtype."""

    def __init__(self, target: Callable[..., Any], kind: Kind, *, output: int = 0, threshold: float = 0.0,
                 dim: int | None = None, input_shape: tuple[int, ...] | None = None, box: Box | None = None) -> None:
        self.target, self.kind, self.output, self.threshold = target, kind, output, threshold
        self.module = target if isinstance(target, nn.Module) else None
        parameter = next(iter(self._tensors()), None)
        floating = parameter is not None and parameter.is_floating_point()
        self.dtype = parameter.dtype if parameter is not None and floating else torch.float64
        self.device = parameter.device if parameter is not None else torch.device("cpu")
        self.input_shape = input_shape or getattr(target, "input_shape", None) or conv_input_shape(self)
        self.box = box if box is not None else getattr(target, "box", None)
        self.dim = dim or (math.prod(self.input_shape) if self.input_shape else declared_dim(target) or found_dim(self))
        self.outputs = self._count_outputs()
        if kind == "gradient" and not 0 <= output < self.outputs:
            raise BadInput(f"output={output} was asked for, but the target has {self.outputs} outputs.")
        self.width = {"values": self.outputs, "gradient": 1 + self.dim, "labels": 1}[kind]

    def answer(self, x: Tensor) -> Tensor:
        rows = GRADIENT_ROWS if self.kind == "gradient" else VALUE_ROWS
        part = {"values": self._values, "gradient": self._gradients, "labels": self._labels}[self.kind]
        with evaluating(self.module):
            blocks = [part(chunk) for chunk in torch.split(x, rows)]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def _forward(self, x: Tensor) -> Any:
        return self.target(x.reshape(-1, *self.input_shape) if self.input_shape else x)

    def _values(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self._forward(x.to(self.device, self.dtype))
            if isinstance(y, tuple) and len(y) == 2:                # a callable that answers (value, gradient)
                y = y[0]
            return as_table(y, len(x)).cpu()

    def _gradients(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            # A leaf of its own, whatever the caller's tensor is part of.
            leaf = x.to(self.device, self.dtype).detach().clone().requires_grad_(True)
            y = self._forward(leaf)
            if isinstance(y, tuple) and len(y) == 2:
                value, grad = (torch.as_tensor(t, dtype=self.dtype) for t in y)
                return torch.cat([value.reshape(-1, 1), grad.reshape(len(x), -1)], 1).detach().cpu()
            column = as_table(y, len(x))[:, self.output]            # (n,)
            grad = torch.zeros_like(leaf)
            if column.requires_grad:                                # a constant function has no graph: gradient zero
                (found,) = torch.autograd.grad(column.sum(), leaf, allow_unused=True)
                grad = grad if found is None else found
        return torch.cat([column.detach()[:, None], grad], 1).cpu()

    def _labels(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self._forward(x.to(self.device, self.dtype))
            if isinstance(y, Tensor) and not y.is_floating_point() and y.numel() == len(x):
                return y.reshape(-1, 1).to(torch.int64).cpu()       # it answers labels already
            y = as_table(y, len(x))
            labels = y.argmax(1) if y.shape[1] > 1 else (y[:, 0] >= self.threshold).to(torch.int64)
            return labels[:, None].cpu()

    def _count_outputs(self) -> int:
        declared = getattr(self.target, "out_features", None)
        if isinstance(declared, int):
            return declared
        if self.module is None:
            # A callable may count or charge its rows: do not ask it anything before the user does.
            declared = getattr(self.target, "outputs", None)
            if isinstance(declared, int):
                return declared
        mid = 0.0 if self.box is None else 0.5 * (self.box[0] + self.box[1])
        with evaluating(self.module), torch.no_grad():
            y = self._forward(torch.full((1, self.dim), mid, dtype=self.dtype, device=self.device))
        if isinstance(y, tuple) and len(y) == 2:
            y = torch.as_tensor(y[0])
        return as_table(y, 1).shape[1]

    def _tensors(self) -> Iterator[Tensor]:
        if self.module is not None:
            yield from self.module.parameters()
            yield from self.module.buffers()


@contextlib.contextmanager
def evaluating(module: nn.Module | None) -> Iterator[None]:
    """Eval mode inside, each submodule's own mode restored after."""
    training = [m for m in module.modules() if m.training] if module is not None else []
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


def as_table(y: Any, rows: int) -> Tensor:
    """(n,), (n, k) or (n, k, 1, 1) -> (n, k)"""
    if not isinstance(y, Tensor):
        try:
            y = torch.as_tensor(y)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadAnswer(f"The target answered a {type(y).__name__} where a tensor was expected.") from error
    if y.ndim == 0 or len(y) != rows:
        raise BadAnswer(f"The target answered shape {tuple(y.shape)} to {rows} rows; one answer per row was expected.")
    table: Tensor = y.reshape(rows, -1)
    return table


def declared_dim(target: Any) -> int | None:
    """What the target itself says of its width: an attribute, or its first layer."""
    for name in ("dim", "in_features", "n_features_in_"):
        value = getattr(target, name, None)
        if isinstance(value, int):
            return value
    layers = target.modules() if isinstance(target, nn.Module) else ()
    for layer in layers:
        if isinstance(layer, (nn.Linear, nn.Bilinear)):
            return int(getattr(layer, "in_features", 0) or getattr(layer, "in1_features", 0))
        if isinstance(layer, (nn.LayerNorm,)):
            return math.prod(layer.normalized_shape)
        if isinstance(layer, (nn.BatchNorm1d,)):
            return layer.num_features
    if not isinstance(target, nn.Module):
        for near in reachable(target):
            found = declared_dim(near) if isinstance(near, nn.Module) else None
            if found:
                return found
    return None


def reachable(function: Any) -> list[Any]:
    """Modules a plain function closes over or names: only their declared width is read."""
    found: list[Any] = []
    with contextlib.suppress(TypeError, ValueError):
        scope = inspect.getclosurevars(function)
        found += [*scope.nonlocals.values(), *scope.globals.values()]
    found.append(getattr(function, "__self__", None))
    found.append(getattr(function, "func", None))
    return [v for v in found if isinstance(v, nn.Module)]


def found_dim(source: LocalSource) -> int:
    """The one width the target accepts, by trying: a matrix product refuses every other."""
    accepted: list[int] = []
    for d in range(1, 4097):
        x = torch.zeros(1, d, dtype=source.dtype, device=source.device)
        try:
            with evaluating(source.module), torch.no_grad():
                source._forward(x)
        except Exception:
            continue
        accepted.append(d)
        if len(accepted) == 3:
            break
    wider = [d for d in accepted if d > 1]
    if len(wider) == 1:                                             # {d}, or {1, d} where a row of one broadcasts
        return wider[0]
    if accepted == [1]:
        return 1
    raise BadInput("How many inputs the target has could not be told from the target: pass dim=, or input_shape=.")


def conv_input_shape(source: LocalSource) -> tuple[int, ...] | None:
    """The shape of a conv net's input when its first layer is a convolution: square sizes are tried."""
    if source.module is None:
        return None
    first = next((m for m in source.module.modules() if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Unflatten))),
                 None)
    if not isinstance(first, nn.Conv2d):
        return None
    for side in SQUARE_SIDES:
        shape = (first.in_channels, side, side)
        x = torch.zeros(1, *shape, dtype=source.dtype, device=source.device)
        try:
            with evaluating(source.module), torch.no_grad():
                source.module(x)
        except Exception:
            continue
        return shape
    return None
