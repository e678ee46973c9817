"""Victims: a trained network, what its owner publishes about it, and what only the owner knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foldline import __version__
from foldline.networks.presets import build
from foldline.randomness import Streams
from foldline.results import Progress, silent
from foldline.victims.datasets import Dataset, Subset, load_dataset, subset, whole
from foldline.victims.fit import fit, score
from foldline.victims.recipes import Recipe, VictimPreset, preset
from foldline.victims.span_fit import fit_in_span


@dataclass(frozen=True, eq=False)
class Victim:
    """`module` and `info` are public (info["mean"] is what its inputs are centred by); `data` is the owner's."""

    module: nn.Module
    info: Mapping[str, Any]
    data: Subset
    mean: Tensor            # (d,) float64; zero for raw inputs

    @property
    def inputs(self) -> Tensor:
        """The training rows as the network saw them."""
        return centred(self.data.x, self.mean, next(self.module.parameters()).dtype)


def train_victim(what: str | VictimPreset, *, rng: torch.Generator, n: int | None = None,
                 data_set: str | Dataset | None = None, data: str | Path | None = None, recipe: Recipe | None = None,
                 arguments: Mapping[str, Any] | None = None, checkpoint: Path | None = None,
                 in_span: bool = False, progress: Progress = silent) -> Victim:
    """Train the victim `what`; n, data_set, recipe and network arguments replace the preset's own where given.

    The same seed gives the same training set whatever the network and recipe, so that victims compare.
    in_span: train in the coordinates of the rows' span, the same up to rounding and faster (span_fit.py).
    """
    streams = Streams(rng)
    name = what if isinstance(what, str) else "custom"
    plan = preset(what) if isinstance(what, str) else what
    plan = replace(plan, n=plan.n if n is None else n, recipe=recipe or plan.recipe,
                   arguments={**plan.arguments, **(arguments or {})})
    progress("reading the data", {})
    source = data_set if isinstance(data_set, Dataset) else load_dataset(data_set or plan.data_set, data)
    chosen = whole(source, plan.task) if plan.n is None else subset(source, plan.n, plan.task, rng=streams("subset"))
    dtype = getattr(torch, plan.recipe.dtype)
    module = build(plan.network, input_shape=chosen.image_shape, outputs=chosen.outputs, rng=streams("start"),
                   dtype=dtype, **plan.arguments)
    if plan.recipe.first_layer_std is not None:
        shrink_first_layer(module, plan.recipe.first_layer_std, streams("small start"))
    mean = centre(chosen.x, plan.recipe.inputs)
    x = centred(chosen.x, mean, dtype)
    train = fit_in_span if in_span else fit
    done = train(module, x, chosen.y, plan.recipe, streams=streams, progress=progress, checkpoint=checkpoint)
    test_loss, test_accuracy = score(module, centred(chosen.x_test, mean, dtype), chosen.y_test)
    module.requires_grad_(False)
    info: dict[str, Any] = {
        "foldline": __version__, "victim": name, "network": plan.network, "arguments": plain(plan.arguments),
        "recipe": plan.recipe.to_dict(), "data_set": source.name, "task": plan.task, "n": len(chosen.x),
        "image_shape": list(chosen.image_shape), "seed": streams.seed, "steps": done.steps, "train_loss": done.loss,
        "train_accuracy": done.accuracy, "test_loss": test_loss, "test_accuracy": test_accuracy,
        "seconds": round(done.seconds, 3), "threads": torch.get_num_threads(), "inputs": plan.recipe.inputs,
        "mean": mean.tolist(),
    }
    if in_span:
        info["in_span"] = True
    stop = plan.recipe.stop_loss
    info["reached"] = stop is None or done.loss <= stop
    if plan.recipe.noise_multiplier is not None:
        from foldline.victims.privacy import epsilon_of
        info["delta"] = 1 / len(chosen.x)
        info["epsilon"] = epsilon_of(plan.recipe, len(chosen.x), done.steps, info["delta"])
    return Victim(module, info, chosen, mean)


def shrink_first_layer(module: nn.Module, std: float, rng: torch.Generator) -> None:
    """The paper's start: the first layer, bias included, from N(0, std^2)."""
    first = next(m for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv2d)))
    with torch.no_grad():
        for p in (first.weight, first.bias):
            if p is not None:
                p.copy_(std * torch.randn(p.shape, generator=rng, dtype=torch.float64))


def centre(x: Tensor, inputs: str) -> Tensor:
    """(d,) what is subtracted from every row."""
    if inputs == "mean":
        return x.double().mean(0)
    return torch.full((x.shape[1],), 0.0 if inputs == "raw" else float(inputs), dtype=torch.float64)


def centred(x: Tensor, mean: Tensor, dtype: torch.dtype) -> Tensor:
    if not mean.any():
        return x.to(dtype)
    return (x.double() - mean).to(dtype) if x.dtype == torch.float64 else (x - mean.to(x.dtype)).to(dtype)


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in arguments.items()}
