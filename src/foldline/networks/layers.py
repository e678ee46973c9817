"""Layers as plain data: what an nn.Sequential is made of, to JSON and back, without running anything from the file.

Only the layer types listed here are written or read, by exact type: a subclass may compute something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from foldline.errors import BadFile, Refused

# type -> the constructor's arguments, each an attribute of the layer under the same name
LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
                "padding_mode"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
                "padding_mode"),
    nn.MaxPool1d: ("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.ReLU: (),
    nn.Tanh: (),
    nn.Sigmoid: (),
    nn.SiLU: (),
    nn.GELU: ("approximate",),
    nn.LeakyReLU: ("negative_slope",),
    nn.ELU: ("alpha",),
    nn.Softplus: ("beta", "threshold"),
    nn.Softmax: ("dim",),
    nn.LogSoftmax: ("dim",),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Unflatten: ("dim", "unflattened_size"),
    nn.BatchNorm1d: ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    nn.BatchNorm2d: ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    nn.LayerNorm: ("normalized_shape", "eps", "elementwise_affine"),
    nn.Dropout: ("p",),
    nn.Dropout2d: ("p",),
    nn.Identity: (),
}
BY_NAME = {cls.__name__: cls for cls in LAYERS}
WITH_BIAS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm)
MAX_LAYERS = 10_000


def describe_layers(module: nn.Sequential) -> list[dict[str, Any]]:
    """[{"type": "Linear", "in_features": 3, ...}, ...]; a nested Sequential is a layer with layers."""
    return [describe_layer(layer) for layer in module]


def describe_layer(layer: nn.Module) -> dict[str, Any]:
    if type(layer) is nn.Sequential:
        return {"type": "Sequential", "layers": describe_layers(layer)}
    arguments = LAYERS.get(type(layer))
    if arguments is None:
        raise Refused(f"A layer of type {type(layer).__name__} cannot be written as data; these can: "
                      f"{', '.join(sorted(BY_NAME))}, and nn.Sequential of them.")
    found = {name: plain(getattr(layer, name)) for name in arguments}
    if isinstance(layer, WITH_BIAS):
        found["bias"] = layer.bias is not None
    return {"type": type(layer).__name__, **found}


def plain(value: Any) -> Any:
    return [plain(v) for v in value] if isinstance(value, tuple) else value


def build_layers(described: Any, *, depth: int = 0) -> nn.Sequential:
    """The Sequential that `describe_layers` described, on the meta device: no memory and no random numbers."""
    if not isinstance(described, list) or len(described) > MAX_LAYERS or depth > 20:
        raise BadFile("its architecture is not a list of layers")
    with torch.device("meta"):
        return nn.Sequential(*(build_layer(one, depth) for one in described))


def build_layer(described: Any, depth: int) -> nn.Module:
    if not isinstance(described, dict) or not isinstance(described.get("type"), str):
        raise BadFile("its architecture holds something that is not a layer")
    name = described["type"]
    arguments = {k: v for k, v in described.items() if k != "type"}
    if name == "Sequential":
        return build_layers(arguments.get("layers"), depth=depth + 1)
    cls = BY_NAME.get(name)
    if cls is None:
        raise BadFile(f"its architecture names a layer {name!r} that foldline does not have")
    unknown = set(arguments) - set(LAYERS[cls]) - ({"bias"} if cls in WITH_BIAS else set())
    if unknown:
        raise BadFile(f"its layer {name} has unknown settings: {', '.join(sorted(unknown))}")
    try:
        layer: nn.Module = cls(**{k: tupled(v) for k, v in arguments.items()})
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadFile(f"its layer {name} cannot be made from {arguments}: {error}") from error
    return layer


def tupled(value: Any) -> Any:
    """JSON has lists where torch wants tuples."""
    return tuple(tupled(v) for v in value) if isinstance(value, Sequence) and not isinstance(value, str) else value
