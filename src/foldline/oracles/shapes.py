"""What can be told of a target's input without asking it a row: its dtype, its width, a conv net's image shape."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from foldline.errors import BadInput

SQUARE_SIDES = (28, 32, 8, 16, 64, 96, 128, 224)    # tried, in order, for conv nets that do not say their input shape
WIDEST = 4096               # widths tried, with empty batches, for a callable that says nothing of itself
DEEPEST = 4                 # how far closures are followed


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


def tensors_of(target: Any) -> Iterator[Tensor]:
    """Parameters and buffers of a module; of a callable, those of the modules it reaches, then plain tensors."""
    if isinstance(target, nn.Module):
        yield from target.parameters()
        yield from target.buffers()
        return
    near = reachable(target)
    for value in near:
        if isinstance(value, nn.Module):
            yield from tensors_of(value)
    yield from (value for value in near if isinstance(value, Tensor))


def declared_dim(target: Any) -> int | None:
    """What the target itself says of its width: an attribute, its first layer, or a module it closes over."""
    for name in ("dim", "in_features", "n_features_in_"):
        value = getattr(target, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    if isinstance(target, nn.Module):
        return first_layer_dim(target)
    for near in reachable(target):
        if isinstance(near, nn.Module):
            shape = getattr(near, "input_shape", None) or conv_input_shape(near)
            found = math.prod(shape) if shape else declared_dim(near)
            if found:
                return found
    return None


def first_layer_dim(module: nn.Module) -> int | None:
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            return layer.in_features
        if isinstance(layer, nn.Bilinear):
            return int(layer.in1_features)
        if isinstance(layer, nn.LayerNorm):
            return math.prod(layer.normalized_shape)
        if isinstance(layer, nn.BatchNorm1d):
            return layer.num_features
        if isinstance(layer, nn.Unflatten) and not isinstance(layer.unflattened_size, str):
            return math.prod(int(s) for s in layer.unflattened_size)  
        if not list(layer.children()) and not isinstance(layer, (nn.Flatten, nn.Identity, nn.Dropout)):
            return None             # a convolution, an embedding: a later Linear does not say how wide the input is
    return None


def reachable(target: Any) -> list[Any]:
    """Modules and tensors that a callable closes over, names, is bound to or holds as attributes."""
    found: list[Any] = []
    seen: set[int] = set()
    level = [target]
    for _ in range(DEEPEST):
        following: list[Any] = []
        for value in level:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, (nn.Module, Tensor)):
                found.append(value)
            elif callable(value) and not isinstance(value, type):
                following += parts_of(value)
        level = following
    return found


def parts_of(function: Any) -> list[Any]:
    parts: list[Any] = [getattr(function, "__self__", None), getattr(function, "func", None),
                        getattr(function, "__wrapped__", None)]
    if inspect.isfunction(function):
        parts += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        with contextlib.suppress(TypeError, ValueError):
            scope = inspect.getclosurevars(function)
            parts += [*scope.nonlocals.values(), *scope.globals.values()]
    else:
        parts += vars(function).values() if hasattr(function, "__dict__") else ()
        parts += [*function.args, *function.keywords.values()] if isinstance(function, functools.partial) else ()
        call = vars(type(function)).get("__call__")
        parts += [call] if inspect.isfunction(call) else []
    return [p for p in parts if isinstance(p, (nn.Module, Tensor)) or
            (callable(p) and not isinstance(p, type) and not inspect.isbuiltin(p) and foreign(p))]


def foreign(value: Any) -> bool:
    """Not torch's, numpy's or Python's own: nothing of the target hides there."""
    home = str(getattr(value, "__module__", "") or "").partition(".")[0]
    return home not in ("torch", "numpy", "scipy", "builtins", "math", "functools") or hasattr(value, "func")


def found_dim(accepts: Callable[[int], bool], target: Any = None) -> int:
    """The one width the target accepts, by trying empty batches: a matrix product refuses every other.

    The sizes of the tensors it closes over come first: a few tries instead of thousands.
    """
    sizes = sorted({int(s) for t in tensors_of(target) for s in t.shape if s > 1})[:64]
    likely = [d for d in sizes if accepts(d)]
    if len(likely) == 1 and not accepts(likely[0] + 1) and not accepts(likely[0] - 1):
        return likely[0]
    accepted: list[int] = []
    for d in range(1, WIDEST + 1):
        if accepts(d):
            accepted.append(d)
            if len(accepted) == 3:
                break
    wider = [d for d in accepted if d > 1]
    if len(wider) == 1:                                             # {d}, or {1, d} where a row of one broadcasts
        return wider[0]
    if accepted == [1]:
        return 1
    raise BadInput("How many inputs the target has could not be told from the target: pass dim=, or input_shape=.")


def conv_input_shape(module: nn.Module) -> tuple[int, ...] | None:
    """The shape of a conv net's input when its first layer is a convolution: square sizes are tried, with empty
    batches, or (for a forward that reshapes by -1, which no empty batch survives) on the meta device: no row is asked.
    """
    first = next((m for m in module.modules()
                  if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Unflatten, nn.Embedding))), None)
    if not isinstance(first, nn.Conv2d):
        return None
    found = first_accepted(module, first, rows=0)
    # The first use of the meta device costs more than a second of imports, so it comes second.
    return found or first_accepted(copy.deepcopy(module).to("meta"), first, rows=1)


def first_accepted(module: nn.Module, first: nn.Conv2d, rows: int) -> tuple[int, ...] | None:
    device = next(iter(module.parameters())).device
    for side in SQUARE_SIDES:
        shape = (first.in_channels, side, side)
        try:
            with evaluating(module), torch.no_grad():
                module(torch.zeros(rows, *shape, dtype=first.weight.dtype, device=device))
        except Exception:
            continue
        return shape
    return None
