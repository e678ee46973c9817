"""A defence of training, tried on the owner's own model: the same layers trained anew on his training set.

Needs the weights (for the layers) and labelled training rows. Rows go in as they are, or minus the known mean,
whichever the model as it is classifies better. The result is kept in the run folder: a resumed audit does not train
again.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foldline.auditing.spec import AuditFile
from foldline.auditing.subjects import Subject, local
from foldline.errors import Refused
from foldline.randomness import Streams, generator
from foldline.results import Progress
from foldline.victims.recipes import EVERYDAY, Recipe

RECIPES = {
    "no-weight-decay": EVERYDAY.changed(weight_decay=0.0, steps=2000),
    "adam": Recipe(optimiser="adam", lr=1e-3, weight_decay=1e-4, steps=2000),
    "dp-sgd": Recipe(lr=0.05, momentum=0.9, steps=400, batch=25, noise_multiplier=1.0, clip_norm=1.0),
}
STARTED = (nn.Linear, nn.Conv2d)                            # layers that can be started anew
FITS = 0.7                  # share of its training rows that a model must get right, or they are not its training rows


def why_not(subject: Subject) -> str:
    """Why this subject cannot be trained anew."""
    if subject.module is None:
        return "it needs the model's layers: give the target as weights"
    if subject.owner is None or subject.owner.train_labels is None:
        return "it needs the training set with its labels: reference.train with x and y, and reference.unseen"
    layers = [m for m in subject.module.modules() if not list(m.children())]
    if any(list(m.parameters(recurse=False)) and not isinstance(m, STARTED) for m in layers) \
            or not any(isinstance(m, STARTED) for m in layers):
        return "its layers are not all linear or convolutional, and it is not known how to start the others anew"
    if isinstance(layers[-1], (nn.Sigmoid, nn.Softmax, nn.LogSoftmax)):
        return "it answers probabilities, and training needs the layer before"
    return ""


def retrained(subject: Subject, name: str, audit: AuditFile, folder: Path, progress: Progress) -> Subject:
    from safetensors.torch import load_file, save_file

    from foldline.networks.presets import initialise
    from foldline.victims.fit import fit
    assert subject.module is not None and subject.owner is not None and subject.owner.train_labels is not None
    x, y = inputs_of(subject), subject.owner.train_labels
    module = copy.deepcopy(subject.module).requires_grad_(True)
    recipe, home = RECIPES[name], folder / "victims" / name
    recipe = replace(recipe, batch=None if recipe.batch is None else min(recipe.batch, len(x)))
    kept = home / "retrained.safetensors"
    if kept.is_file():
        module.load_state_dict(load_file(kept))
    else:
        home.mkdir(parents=True, exist_ok=True)
        streams = Streams(generator(audit.seed))
        initialise(module, streams("start"))
        fit(module, x, y, recipe, streams=streams, progress=progress, checkpoint=home / "checkpoint.safetensors")
        part = kept.with_suffix(".part")
        save_file({k: v.contiguous() for k, v in module.state_dict().items()}, part)
        part.replace(kept)
    module.eval().requires_grad_(False)
    facts = {**subject.facts, "training": recipe_words(name, recipe.to_dict(), told(recipe, len(x)))}
    return replace(subject, open=lambda kind: local(module, kind, audit), module=module, facts=facts)


def inputs_of(subject: Subject) -> Tensor:
    """(n, d) the training rows as the model takes them."""
    from foldline.victims.fit import score
    module, owner, mean = subject.module, subject.owner, subject.known.mean
    assert module is not None and owner is not None and owner.train_labels is not None
    dtype = next(module.parameters()).dtype
    rows, classes = owner.train.to(dtype), owner.train_labels
    with torch.no_grad():
        outputs = module(rows[:1]).shape[1]
    if int(classes.min()) < 0 or int(classes.max()) > max(outputs, 2) - 1:
        raise Refused(f"The labels of the training set go from {int(classes.min())} to {int(classes.max())}; a model "
                      f"of {outputs} outputs has classes 0 to {max(outputs, 2) - 1}.")
    ways = [rows] if mean is None else [rows, rows - torch.as_tensor(mean, dtype=dtype)]
    right = [score(module, way, classes)[1] for way in ways]
    if max(right) < FITS:
        raise Refused(f"The model as it is gets {max(right):.0%} of the given training rows right: these are not its "
                      f"training rows, or not in its coordinates, so it was not trained anew on them.")
    return ways[right.index(max(right))]


def told(recipe: Recipe, n: int) -> dict[str, float | int | None]:
    from foldline.victims.privacy import epsilon_of
    if recipe.noise_multiplier is None:
        return {"steps": recipe.steps}
    return {"steps": recipe.steps, "epsilon": epsilon_of(recipe, n, recipe.steps or 0, 1 / n), "delta": 1 / n}


def recipe_words(name: str, recipe: Any, info: Any) -> str:
    words = f"{recipe['optimiser'].upper()}, learning rate {recipe['lr']:g}, momentum {recipe['momentum']:g}, " \
            f"weight decay {recipe['weight_decay']:g}, {info['steps']} steps, PyTorch's default start"
    if info.get("epsilon") is not None:
        words += f"; differentially private, epsilon {info['epsilon']:.3g} at delta {info['delta']:.3g}"
    return words
