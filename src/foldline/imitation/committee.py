"""Several students of the same few answers, averaged into one network.

With ten queries the answers fix little of a network, and what they leave open differs from student to student: the mean
of a few is nearer to the target than most of them. The mean of K networks of layers in a row is itself such a network,
K times as wide: first layers side by side, those between in blocks, the last ones side by side and divided by K. So
the mean is written out as one network, exactly, and no row of the target is asked for it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from foldline.imitation.losses import Pupil
from foldline.networks.presets import Dense, Pictures, initialise
from foldline.randomness import Streams

MEMBERS = 3
MOST_QUERIES = 32               # beyond that the answers themselves fix the student, and the price is not worth it
PRESETS = ("two-layer", "mlp", "conv")
# What acts on every channel alone, so that blocks of channels do not meet in it
APART = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d,
         nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity)

Train = Callable[[Pupil, str], float]


def members_for(module: nn.Module, explained: int | None, asked: int | None) -> int:
    """How many students are averaged: `asked`, or by default MEMBERS where explained queries are few."""
    if asked is None:
        return MEMBERS if explained is not None and explained <= MOST_QUERIES and why_not(module) is None else 1
    return max(1, asked)


def why_not(module: nn.Module) -> str | None:
    """Why the mean of such networks is no network of the same kind; None where it is."""
    preset = getattr(module, "preset", None)
    if preset is not None and preset["name"] not in PRESETS:
        return f"the mean of several {preset['name']} networks is not one"
    if preset is None and type(module) is not nn.Sequential:
        return f"a committee needs layers in a row, and {type(module).__name__} is not known to be such"
    for layer in module.modules():
        known = isinstance(layer, (nn.Sequential, Dense, Pictures, nn.Linear, nn.Conv2d, *APART))
        if not known or (isinstance(layer, nn.Conv2d) and layer.groups != 1):
            return f"a committee cannot be merged through {type(layer).__name__}"
    layers = weighted(module)
    return None if len(layers) > 1 and isinstance(layers[-1], nn.Linear) else "a committee needs two layers or more"


def gather(pupil: Pupil, train: Train, streams: Streams, members: int) -> tuple[nn.Module, float, list[nn.Module]]:
    """(the mean of `members` students as one network, their mean loss, those that it is the mean of).

    The first is pupil.module, from its own parameters, the others differ in their start; `train(pupil, name)` teaches
    one in place. One whose training did not stay finite is left out; if none did, the first comes back as it started.
    """
    found = [pupil.module, *(copy.deepcopy(pupil.module) for _ in range(members - 1))]
    losses = []
    for i, module in enumerate(found):
        if i:
            initialise(module, streams(f"start of member {i}"))
        losses.append(train(pupil.like(module), f"student {i + 1} of {members}"))
    good = [i for i, loss in enumerate(losses) if math.isfinite(loss)]
    if not good:
        return pupil.module, math.inf, []
    kept = [found[i] for i in good]
    return mean_network(kept), sum(losses[i] for i in good) / len(good), kept


def mean_network(members: Sequence[nn.Module]) -> nn.Module:
    """One network whose last layer answers the mean of the members'."""
    K = len(members)
    wide = copy.deepcopy(members[0])
    rows = [weighted(m) for m in members]
    last = len(rows[0]) - 1
    names = [name for name, layer in wide.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    with torch.no_grad():
        for i, name in enumerate(names):
            weights = [r[i].weight for r in rows]
            biases: list[Tensor] = [b for b in (r[i].bias for r in rows) if b is not None]     # of all, or of none
            if i == last:
                weight, bias = torch.cat(weights, 1) / K, torch.stack(biases).mean(0) if biases else None
            else:
                weight = torch.cat(weights) if i == 0 else blocks(weights)
                bias = torch.cat(biases) if biases else None
            put(wide.get_submodule(name), weight, bias)
    if hasattr(wide, "preset"):
        wide.preset = widened(wide)                                 # type: ignore[assignment]
    return wide


def weighted(module: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    return [layer for layer in module.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]


def blocks(weights: Sequence[Tensor]) -> Tensor:
    """Weights (out, in, ...) of layers side by side that do not meet: (K out, K in, ...)"""
    K, (m, n) = len(weights), weights[0].shape[:2]
    out = weights[0].new_zeros(K * m, K * n, *weights[0].shape[2:])
    for k, w in enumerate(weights):
        out[k * m:(k + 1) * m, k * n:(k + 1) * n] = w
    return out


def put(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    assert isinstance(layer, (nn.Linear, nn.Conv2d))
    layer.weight = nn.Parameter(weight.clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.clone())
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = weight.shape
    else:
        layer.out_channels, layer.in_channels = weight.shape[:2]


def widened(module: nn.Module) -> dict[str, object]:
    """The preset's name and arguments at the sizes that its layers have."""
    preset = copy.deepcopy(module.preset)
    assert isinstance(preset, dict)
    sizes = [len(layer.weight) for layer in weighted(module)[:-1]]
    own = {"two-layer": {"width": sizes[0]}, "mlp": {"widths": sizes},
           "conv": {"width": sizes[0], "hidden": sizes[-1]}}[preset["name"]]
    preset["arguments"].update(own)
    return preset
